"""Opens pages in a browser. Playwright is imported for that alone: runs of all other tests lack it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from page_actions import Open
    from page_server import PageServer
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM") or None
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens pages that fail the test if a script fails or the policy of the page refuses something."""
    from page_actions import PATIENCE
    from playwright.sync_api import expect

    faults: list[str] = []
    contexts = []

    def open_one(server: PageServer, ready: bool = True, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 800}, **options})
        contexts.append(context)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda one: faults.append(one.text) if "Content Security Policy" in one.text else None)
        page.goto(server.url)
        if ready:
            expect(page.locator("#status")).to_have_text("Ready", timeout=PATIENCE)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert not faults
