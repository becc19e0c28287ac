"""Conversations of the page: answers, their versions, and what is kept of them.

Each test waits for a state of the page, never for a time.
"""

from __future__ import annotations

import pytest
from page_actions import ANSWER, LAST, Open, done, send, served, set_field
from playwright.sync_api import expect


def test_send_and_markdown(open_page: Open) -> None:
    with served(reply=ANSWER) as server:
        page = open_page(server)
        send(page, "How do I sort?")
        done(page)
        expect(page.locator(".message.user .plain")).to_have_text("How do I sort?")
        answer = page.locator(LAST)
        expect(answer.locator("h4")).to_have_text("Plan")
        expect(answer.locator("strong code")).to_have_text("sorted")
        expect(answer.locator("pre code")).to_have_text("print(sorted([3, 1]))  # in order")
        expect(answer.locator(".code-comment")).to_have_text("# in order")
        for fact in (f"{len(ANSWER)} tokens", "tokens/s", "first after", "3 of 15 prompt tokens cached"):
            expect(answer.locator(".facts")).to_contain_text(fact)
        answer.get_by_label("Copy code").click()
        assert page.evaluate("navigator.clipboard.readText()") == "print(sorted([3, 1]))  # in order"
        assert server.engine.requests[0].params.temperature == 1


def test_a_choice_of_models(open_page: Open) -> None:
    with served(models=("one", "two")) as server:
        page = open_page(server)
        choice = page.locator("#models")
        expect(choice).to_be_visible()
        expect(choice.locator("option")).to_have_text(["one (not loaded)", "two (not loaded)"])
        send(page, "Hi")
        done(page)
        expect(page.locator(LAST)).to_contain_text("one")
        choice.select_option("two")
        expect(page.locator("#model")).to_contain_text("two")
        send(page, "And you?")
        done(page)
        expect(page.locator(LAST)).to_contain_text("two")
        assert server.engines.opened == ["one", "two"]
        page.reload()
        expect(choice).to_have_value("two")
        expect(choice.locator("option")).to_have_text(["one", "two"])
        page.click("#tab-engine")
        expect(page.locator(".about")).to_contain_text("two")
        choice.select_option("one")
        expect(page.locator(".about")).to_contain_text("one")
    with served() as server:
        page = open_page(server)
        expect(page.locator("#models")).to_be_hidden()


def test_html_of_a_model_stays_text(open_page: Open) -> None:
    reply = "<img src=x onerror=alert(1)> <script>alert(1)</script> [x](javascript:alert(1)) ![i](http://e.com/i.png)"
    with served(reply=reply) as server:
        page = open_page(server)
        page.on("dialog", lambda dialog: pytest.fail("a script ran"))
        requested: list[str] = []
        page.on("request", lambda request: requested.append(request.url))
        send(page, "Hi")
        done(page)
        text = page.locator(f"{LAST} >> .markdown >> nth=-1")
        expect(text).to_contain_text("<img src=x onerror=alert(1)> <script>alert(1)</script> x")
        assert text.locator("img, script").count() == 0
        assert text.locator("a").evaluate_all("links => links.map(a => a.href)") == ["http://e.com/i.png"]
        assert all(url.startswith(server.url) for url in requested)


def test_stream_then_stop_then_continue(open_page: Open) -> None:
    with served(reply="One two three", hold=7) as server:
        page = open_page(server)
        send(page, "Count")
        expect(page.locator(LAST)).to_contain_text("One two")
        expect(page.locator(LAST)).to_have_attribute("aria-busy", "true")
        page.get_by_label("Stop", exact=True).click()
        done(page, "stopped")
        expect(page.locator(LAST)).to_contain_text("stopped")
        server.engine.hold = None
        server.engine.reply = " three"
        page.get_by_label("Continue this answer").click()
        done(page)
        expect(page.locator(f"{LAST} >> .markdown >> nth=-1")).to_have_text("One two three")


def test_escape_stops_and_leaving_ends_the_request(open_page: Open) -> None:
    with served(reply="One two three", hold=7) as server:
        page = open_page(server)
        send(page, "Count")
        expect(page.locator(LAST)).to_contain_text("One two")
        page.keyboard.press("Escape")
        done(page, "stopped")
        server.engine.hold = None
        send(page, "Again")
        done(page)
        assert len(server.engine.closed) == 2


def test_reload_keeps_the_conversation(open_page: Open) -> None:
    with served(reply="Hello there") as server:
        page = open_page(server)
        set_field(page, "system", "Be kind.")
        send(page, "Hi")
        done(page)
        page.reload()
        expect(page.locator(LAST)).to_contain_text("Hello there")
        expect(page.locator("#set-system")).to_have_value("Be kind.")
        page.click("#new-chat")
        expect(page.locator(".welcome")).to_be_visible()
        send(page, "Second chat")
        done(page)
        expect(page.locator("#conversations .title")).to_have_text(["Second chat", "Hi"])
        page.get_by_role("button", name="Hi", exact=True).click()
        expect(page.locator(".message.user .plain")).to_have_text("Hi")


def test_reload_in_the_middle_keeps_what_came(open_page: Open) -> None:
    with served(reply="One two three", hold=7) as server:
        page = open_page(server)
        send(page, "Count")
        expect(page.locator(LAST)).to_contain_text("One two")
        page.reload()
        done(page, "stopped")
        expect(page.locator(".message.user .plain")).to_have_text("Count")
        expect(page.locator(LAST)).to_contain_text("One two")


def test_the_list_keeps_the_focus_while_an_answer_comes(open_page: Open) -> None:
    with served(reply="One two three", hold=7) as server:
        page = open_page(server)
        send(page, "Count")
        expect(page.locator(LAST)).to_contain_text("One two")
        page.get_by_role("button", name="Count", exact=True).focus()
        server.release()
        done(page)
        expect(page.get_by_role("button", name="Count", exact=True)).to_be_focused()


def test_deleting_can_be_undone(open_page: Open) -> None:
    with served() as server:
        page = open_page(server)
        send(page, "Hi")
        done(page)
        page.locator("#conversations li").hover()
        page.get_by_label("Delete “Hi”").click()
        expect(page.locator("#conversations li")).to_have_count(0)
        page.get_by_role("button", name="Undo").click()
        expect(page.locator(".message.user .plain")).to_have_text("Hi")


def test_edit_a_question(open_page: Open) -> None:
    with served() as server:
        page = open_page(server)
        for text in ("First", "Second"):
            send(page, text)
            done(page)
        page.locator(".message.user").first.hover()
        page.get_by_label("Edit message").first.click()
        page.get_by_label("Edit the text").fill("Changed")
        page.keyboard.press("Enter")
        done(page)
        expect(page.locator(".message.user .plain")).to_have_text(["Changed"])
        assert bytes(server.engine.requests[-1].prompt) == b"Changed>"
        page.get_by_role("button", name="Undo").click()
        expect(page.locator(".message.user .plain")).to_have_text(["First", "Second"])


def test_edit_an_answer(open_page: Open) -> None:
    with served() as server:
        page = open_page(server)
        send(page, "Hi")
        done(page)
        page.get_by_label("Edit answer").click()
        page.get_by_label("Edit the text").fill("Mine")
        page.get_by_role("button", name="Save").click()
        send(page, "Next")
        done(page)
        assert bytes(server.engine.requests[-1].prompt) == b"Hi|Mine|Next>"


def test_generate_again_keeps_both_versions(open_page: Open) -> None:
    with served(reply="First") as server:
        page = open_page(server)
        send(page, "Hi")
        done(page)
        server.engine.reply = "Other"
        page.get_by_label("Generate again").click()
        done(page)
        expect(page.locator(LAST)).to_contain_text("Other")
        expect(page.get_by_label("Version 2 of 2")).to_be_visible()
        page.get_by_label("Earlier version").click()
        expect(page.locator(LAST)).to_contain_text("First")
        send(page, "Next")
        done(page)
        assert bytes(server.engine.requests[-1].prompt) == b"Hi|First|Next>"
