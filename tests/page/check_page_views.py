"""Views of the page: the engine's, narrow screens, themes, the keyboard alone, and the page of the API.

Each test waits for a state of the page, never for a time.
"""

from __future__ import annotations

from page_actions import Open, done, send, served
from playwright.sync_api import expect


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
