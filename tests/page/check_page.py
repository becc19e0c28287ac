"""The page in a real browser, against a server with a fake engine: `ci/page.sh` runs this.

Each test waits for a state of the page, never for a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from page_server import PageServer
from playwright.sync_api import Browser, Page, expect, sync_playwright

ANSWER = "## Plan\n\nUse **`sorted`**:\n\n```python\nprint(sorted([3, 1]))  # in order\n```\n"
LAST = ".message.assistant >> nth=-1"
PATIENCE = 30_000  # milliseconds


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM") or None
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@contextmanager
def served(**engine: Any) -> Iterator[PageServer]:
    server = PageServer(**engine)
    server.start()
    try:
        yield server
    finally:
        server.stop()


Open = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens pages that fail the test if a script fails or the policy of the page refuses something."""
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


def test_sampling_controls_reach_the_engine(open_page: Open) -> None:
    with served() as server:
        page = open_page(server)
        for name, value in {"temperature": "0.5", "top_k": "7", "min_p": "0.1", "max_tokens": "9", "seed": "3"}.items():
            set_field(page, name, value)
        set_field(page, "presence_penalty", "0.5")
        set_field(page, "top_p", "7")
        send(page, "Hi")
        done(page, "failed")
        expect(page.locator(LAST)).to_contain_text("Top p: from 0 to 1")
        set_field(page, "top_p", "0.9")
        page.get_by_role("button", name="Try again").click()
        done(page)
        params = server.engine.requests[-1].params
        found = (params.temperature, params.top_p, params.top_k, params.min_p, params.max_tokens, params.seed)
        assert found == (0.5, 0.9, 7, 0.1, 9, 3)
        assert params.presence_penalty == 0.5


def test_json_schema(open_page: Open) -> None:
    with served(reply='{"a": 1}') as server:
        page = open_page(server)
        set_field(page, "output", "json_schema")
        set_field(page, "schema", "{")
        expect(page.locator("#set-schema")).to_have_attribute("aria-invalid", "true")
        set_field(page, "schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}')
        expect(page.locator("#set-schema")).to_have_attribute("aria-invalid", "false")
        send(page, "Hi")
        done(page)
        constraint = server.engine.requests[-1].constraint
        assert constraint is not None
        assert "integer" in str(constraint)


def test_tools_with_a_result_by_hand(open_page: Open) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>'
    with served(reply=call) as server:
        page = open_page(server)
        set_field(page, "tools", '[{"name": "weather", "parameters": {"type": "object"}}]')
        send(page, "Hi")
        done(page)
        expect(page.locator(".call")).to_contain_text('"city": "Ulm"')
        send(page, "Too early")
        expect(page.locator("textarea.result")).to_be_focused()
        page.fill("#prompt", "")
        server.engine.reply = "It rains."
        page.get_by_label("Result of weather").fill('{"rain": true}')
        page.get_by_role("button", name="Send the results").click()
        done(page)
        expect(page.locator(LAST)).to_contain_text("It rains.")
        assert b'{"rain": true}' in bytes(server.engine.requests[-1].prompt)


def test_alternatives_of_a_token(open_page: Open) -> None:
    with served(reply="Hey") as server:
        page = open_page(server)
        set_field(page, "logprobs", "5")
        send(page, "Hi")
        done(page)
        page.get_by_label("Show tokens and their alternatives").click()
        expect(page.locator(".token")).to_have_text(["H", "e", "y"])
        page.locator(".token").first.hover()
        expect(page.locator(".alternatives")).to_contain_text("60.7%")
        expect(page.locator(".alternatives")).to_contain_text("‹ff›")
        page.locator(".token").first.focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator(".token").nth(1)).to_be_focused()


def test_images_only_if_the_server_says_so(open_page: Open) -> None:
    with served() as server:
        page = open_page(server)
        expect(page.locator("#attach")).to_be_hidden()

        def with_images(route: Any) -> None:
            cards = route.fetch().json()
            cards["data"][0]["input_modalities"] = ["text", "image"]
            route.fulfill(json=cards)

        page.route("**/v1/models", with_images)
        page.reload()
        expect(page.locator("#attach")).to_be_visible()
        page.set_input_files("#image-file", {"name": "a.png", "mimeType": "image/png", "buffer": b"png"})
        expect(page.locator(".thumb")).to_have_count(1)
        with page.expect_request("**/v1/chat/completions") as sent:
            send(page, "What is it?")
        content = json.loads(sent.value.post_data or "")["messages"][0]["content"]
        assert content[1]["image_url"]["url"].startswith("data:image/png;base64,")
        done(page, "failed")


def test_the_engine_view(open_page: Open) -> None:
    with served() as server:
        page = open_page(server)
        page.get_by_role("tab", name="Engine").click()
        expect(page.locator(".tiles")).to_contain_text("2 of 8")
        expect(page.locator(".requests tbody tr")).to_have_count(3)
        expect(page.locator(".requests")).to_contain_text("300 (256 cached)")
        expect(page.locator("canvas.blocks")).to_have_attribute(
            "aria-label", "Map of 60 KV blocks: 10 free, 20 cached, 30 held"
        )
        expect(page.locator(".prefixes li")).to_have_text(
            ["256 tokens · 2 users · 2 branches", "48 tokens · ends at 304 · 1 user · private"]
        )
        expect(page.locator(".chart .plot")).to_have_attribute(
            "aria-label", "Device busy 50%, Slots used 25%, KV memory used 75%"
        )
        page.locator("canvas.blocks").hover(position={"x": 3, "y": 3})
        expect(page.locator(".map")).to_contain_text("Block 1: free")
        page.reload()
        expect(page.locator("#panel-engine")).to_be_visible()
        server.engine.dead = True
        expect(page.locator(".engine-note")).to_contain_text("does not answer")
        server.engine.dead = False
        expect(page.locator(".engine-note")).to_be_hidden()


def test_a_narrow_screen(open_page: Open) -> None:
    wide = "| a | b |\n|---|---|\n| " + "x" * 200 + " | y |\n\n```\n" + "y" * 300 + "\n```\n" + "z" * 200
    with served(reply=wide) as server:
        page = open_page(server, viewport={"width": 375, "height": 667}, has_touch=True)

        def fits(*names: str) -> None:
            assert page.evaluate("document.documentElement.scrollWidth") == 375
            assert page.evaluate("document.documentElement.scrollHeight") == 667
            for name in ("#menu", "#toggle-settings", "#theme", *names):
                box = page.locator(name).bounding_box()
                assert box is not None
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= 375
                assert min(box["width"], box["height"]) >= 36

        send(page, "Hi")
        done(page)
        fits("#send")
        assert page.evaluate("document.querySelector('#log').scrollWidth <= 375")
        page.click("#menu")
        expect(page.locator("#new-chat")).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.locator("#sidebar")).to_be_hidden()
        page.click("#toggle-settings")
        expect(page.locator("#settings")).to_be_in_viewport()
        page.get_by_label("Close the settings").click()
        page.get_by_role("tab", name="Engine").click()
        expect(page.locator(".requests tbody tr")).to_have_count(3)
        fits()
        assert page.evaluate("document.querySelector('#panel-engine').scrollWidth <= 375")


def test_themes(open_page: Open) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    with served() as server:
        page = open_page(server, color_scheme="dark")
        dark = page.evaluate(colour)
        page.get_by_label("System's colours").click()
        light = page.evaluate(colour)
        assert dark != light
        page.reload()
        assert page.evaluate(colour) == light
        page.get_by_label("Light colours").click()
        assert page.evaluate(colour) == dark


def test_by_keyboard_alone(open_page: Open) -> None:
    with served(reply="Hello") as server:
        page = open_page(server)
        page.locator(".skip").focus()
        expect(page.locator(".skip")).to_be_in_viewport()
        page.keyboard.press("Enter")
        expect(page.locator("#prompt")).to_be_focused()
        page.locator("#menu").evaluate("() => document.activeElement.blur()")
        page.keyboard.press("/")
        expect(page.locator("#prompt")).to_be_focused()
        page.keyboard.type("Hi")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("there")
        page.keyboard.press("Enter")
        done(page)
        expect(page.locator(".message.user .plain")).to_have_text("Hi\nthere")
        page.locator("#tab-chat").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#tab-engine")).to_be_focused()
        expect(page.locator("#panel-engine")).to_be_visible()
        names = "nodes => nodes.filter(n => !n.getAttribute('aria-label') && !n.textContent.trim()).map(n => n.id)"
        assert page.locator("button").evaluate_all(names) == []
        unlabelled = "nodes => nodes.filter(n => !n.labels?.length && !n.getAttribute('aria-label')).map(n => n.id)"
        assert page.locator("input:not([hidden]), select, textarea").evaluate_all(unlabelled) == []


def test_the_page_of_the_api(open_page: Open) -> None:
    """Every route opens, with its example, bodies and errors; a filter finds some; a wrong key is asked again."""
    with served(key="sk-docs") as server:
        page = open_page(server, ready=False)
        page.goto(f"{server.url.rstrip('/')}/docs")
        page.locator("#key").fill("wrong")
        page.get_by_role("button", name="Show").click()
        expect(page.locator("#locked")).to_be_visible()
        page.locator("#key").fill("sk-docs")
        page.get_by_role("button", name="Show").click()
        routes = page.locator("details.route")
        expect(routes.first).to_be_visible()
        for at in range(routes.count()):
            routes.nth(at).locator("summary").first.click()
        expect(page.locator("details.route > .body")).to_have_count(routes.count())
        chat = routes.filter(has_text="/v1/chat/completions").first
        expect(chat.locator("pre").first).to_contain_text("curl -X POST")
        expect(chat.locator("pre").first).to_contain_text("Authorization: Bearer")
        expect(chat.locator("li code", has_text="temperature").first).to_be_visible()
        page.locator("#filter").fill("tokenize")
        expect(page.locator("details.route:visible")).to_have_count(3)
