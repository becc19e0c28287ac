"""Settings of the page that reach the engine: sampling, schemas, tools, alternatives, images.

Each test waits for a state of the page, never for a time.
"""

from __future__ import annotations

import json
from typing import Any

from page_actions import LAST, Open, done, send, served, set_field
from playwright.sync_api import expect


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
