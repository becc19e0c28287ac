"""What the tests of the page in a browser share: a server, and what a user does on an opened page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from page_server import PageServer
from playwright.sync_api import Page, expect

__all__ = ["ANSWER", "LAST", "PATIENCE", "Open", "done", "send", "served", "set_field"]

ANSWER = "## Plan\n\nUse **`sorted`**:\n\n```python\nprint(sorted([3, 1]))  # in order\n```\n"
LAST = ".message.assistant >> nth=-1"
PATIENCE = 30_000  # milliseconds
Open = Callable[..., Page]


@contextmanager
def served(**engine: Any) -> Iterator[PageServer]:
    server = PageServer(**engine)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def send(page: Page, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def done(page: Page, status: str = "done") -> None:
    expect(page.locator(LAST)).to_have_attribute("data-status", status, timeout=PATIENCE)


def set_field(page: Page, name: str, value: str) -> None:
    if page.locator("#settings").is_hidden():
        page.click("#toggle-settings")
    field = page.locator(f"#set-{name}")
    if field.evaluate("field => field.tagName") == "SELECT":
        field.select_option(value)
    else:
        field.fill(value)
