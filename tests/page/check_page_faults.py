"""The page while a key is wrong, a server is away or an engine is lost.

Each test waits for a state of the page, never for a time.
"""

from __future__ import annotations

from page_actions import LAST, Open, done, send, served
from playwright.sync_api import expect


def test_a_wrong_key_then_the_right_one(open_page: Open) -> None:
    with served(key="sk-right", reply="Hello") as server:
        page = open_page(server, ready=False)
        dialog = page.locator("#key-dialog")
        expect(dialog).to_contain_text("This server needs a key.")
        page.fill("#key", "sk-wrong")
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("The server refuses this key.")
        page.fill("#key", "sk-right")
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        expect(page.locator("#status")).to_have_text("Ready")
        send(page, "Hi")
        done(page)
        page.reload()
        expect(page.locator("#status")).to_have_text("Ready")
        assert page.evaluate("localStorage.getItem('headrace.key')") is None


def test_a_server_that_is_lost_and_comes_back(open_page: Open) -> None:
    with served(reply="One two three", hold=7) as server:
        page = open_page(server)
        send(page, "Count")
        expect(page.locator(LAST)).to_contain_text("One two")
        server.stop()
        done(page, "failed")
        expect(page.locator("#status")).to_have_text("Lost")
        expect(page.locator("#banner")).to_contain_text("does not answer")
        server.engine.hold = None
        server.start()
        expect(page.locator("#status")).to_have_text("Ready")
        expect(page.locator("#banner")).to_be_hidden()
        page.get_by_role("button", name="Try again").click()
        done(page)
        expect(page.locator(LAST)).to_contain_text("One two three")


def test_an_engine_that_is_lost_in_the_middle(open_page: Open) -> None:
    """The stream's error leads to a question for the server's health, at once."""
    with served(reply="One two three", hold=7, fail_after=7) as server:
        page = open_page(server)
        send(page, "Count")
        expect(page.locator(LAST)).to_contain_text("One two")
        server.engine.dead = True
        server.release()
        done(page, "failed")
        expect(page.locator(LAST)).to_contain_text("the engine died")
        expect(page.locator("#status")).to_have_text("Not available")
        server.engine.dead, server.engine.fail_after = False, None
        expect(page.locator("#status")).to_have_text("Ready")
        page.get_by_role("button", name="Try again").click()
        done(page)


def test_an_engine_that_restarts(open_page: Open) -> None:
    with served() as server:
        page = open_page(server)
        server.engine.dead = True
        server.engine.refuse = server.engine.failure
        send(page, "Hi")
        done(page, "failed")
        expect(page.locator(LAST)).to_contain_text("the engine died")
        expect(page.locator("#status")).to_have_text("Not available")
        server.engine.dead, server.engine.refuse = False, None
        expect(page.locator("#status")).to_have_text("Ready")
