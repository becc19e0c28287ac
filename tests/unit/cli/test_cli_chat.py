"""`generate`, `chat` and `run`: requests, output, and interrupts."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_fakes import FakeSource, Terminal

from headrace.cli import chat_command, generate_command, local_source, run_command
from headrace.cli.answer_view import PlainView
from headrace.cli.conversation import Conversation
from headrace.cli.main import main
from headrace.cli.pieces import AnswerClock
from headrace.client.api import GenerateRequest, ModelInfo, Output
from headrace.errors import ConfigError, ContextOverflow, EngineDead, HeadraceError, InvalidRequest
from headrace.tokenization.chat_inputs import ChatInputs


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> FakeSource:
    fake = FakeSource()

    @contextlib.contextmanager
    def open_source(args: argparse.Namespace, model: str | None) -> Iterator[FakeSource]:
        fake.asked.append(("model", model))
        with contextlib.closing(fake):
            yield fake

    def make_source(args: argparse.Namespace, model: str | None) -> FakeSource:
        fake.asked.append(("model", model))
        return fake

    monkeypatch.setattr(generate_command, "open_source", open_source)
    monkeypatch.setattr(chat_command, "make_source", make_source)
    monkeypatch.setattr(run_command, "make_source", make_source)
    return fake


class TestGenerate:
    def test_a_prompt_alone(self, source: FakeSource, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["generate", "abc", "--max-tokens", "3"]) == 0
        assert capsys.readouterr().out == "abc\n"
        assert source.asked == [("model", None), "abc"]
        assert source.params[0]["max_tokens"] == 3
        assert source.params[0]["temperature"] == 0.0
        assert source.closed

    def test_a_model_and_a_prompt(self, source: FakeSource) -> None:
        assert main(["generate", "m.gguf", "abc"]) == 0
        assert source.asked == [("model", "m.gguf"), "abc"]

    @pytest.mark.parametrize("words", [[], ["-"], ["m", "-"]])
    def test_a_prompt_from_stdin(self, source: FakeSource, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe\n"))
        assert main(["generate", *words]) == 0
        assert source.asked[1] == "from a pipe\n"

    def test_no_prompt_at_all(
        self, source: FakeSource, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal())
        assert main(["generate"]) == 2
        assert "give a PROMPT" in capsys.readouterr().err

    @pytest.mark.parametrize("verb", ["generate", "run"])
    @pytest.mark.parametrize(
        ("finish", "form", "told"), [("length", True, True), ("length", False, False), ("stop", True, False)]
    )
    def test_a_form_that_was_cut_off_is_told(
        self, source: FakeSource, capsys: pytest.CaptureFixture[str], verb: str, finish: str, form: bool, told: bool
    ) -> None:
        source.finish_reason = finish
        assert main([verb, "m", "12", *(["--regex", "[0-9]{9}"] if form else [])]) == 0
        shown = capsys.readouterr()
        assert shown.out == "12\n"
        assert shown.err.startswith("warning: the answer was cut off before its form was complete") == told

    def test_a_prompt_that_was_not_quoted(self, source: FakeSource, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["generate", "a", "b", "c"]) == 2
        assert "quotation marks" in capsys.readouterr().err

    def test_an_interrupt_aborts_the_request(self, source: FakeSource, monkeypatch: pytest.MonkeyPatch) -> None:
        class Out(io.StringIO):
            def write(self, text: str) -> int:
                if text == "b":
                    raise KeyboardInterrupt
                return super().write(text)

        monkeypatch.setattr(sys, "stdout", Out())
        assert main(["generate", "abc"]) == 130
        assert source.aborted == 1
        assert source.closed


def talk(
    *lines: str, source: FakeSource | None = None, system: str | None = None, interactive: bool = True
) -> tuple[Conversation, str]:
    out = io.StringIO()
    conversation = Conversation({"max_tokens": 5}, PlainView(out, sys.stderr), system, interactive)
    conversation.source = source or FakeSource()
    for line in lines:
        conversation.ask(line)
    return conversation, out.getvalue()


def at(position: int, error: BaseException) -> Callable[[int], None]:
    def script(now: int) -> None:
        if now == position:
            raise error

    return script


class TestConversation:
    def test_every_request_has_the_messages_before(self) -> None:
        source = FakeSource()
        _, shown = talk("one", "two", source=source, system="be brief")
        assert shown == "one\ntwo\n"
        assert [message["content"] for message in source.asked[1]] == ["be brief", "one", "one", "two"]
        assert [message["role"] for message in source.asked[1]] == ["system", "user", "assistant", "user"]

    def test_each_answer_has_its_speed(self, capsys: pytest.CaptureFixture[str]) -> None:
        talk("hello")
        assert re.fullmatch(r"\(5 tokens, [\d.]+ tokens/s, first after [\d.]+ s\)\n", capsys.readouterr().err)

    def test_ctrl_c_stops_the_answer_and_keeps_its_text(self, capsys: pytest.CaptureFixture[str]) -> None:
        conversation, shown = talk("hello", "x", source=FakeSource(at(3, KeyboardInterrupt())))
        assert shown == "hel\nx\n"
        assert [message["content"] for message in conversation.messages] == ["hello", "hel", "x", "x"]
        assert capsys.readouterr().err.startswith("(stopped, 3 tokens")

    def test_ctrl_c_before_the_first_token_removes_the_question(self) -> None:
        conversation, _ = talk("hello", source=FakeSource(at(0, KeyboardInterrupt())))
        assert conversation.messages == []

    def test_ctrl_c_in_a_pipe_ends_the_command(self) -> None:
        with pytest.raises(KeyboardInterrupt):
            talk("hello", source=FakeSource(at(3, KeyboardInterrupt())), interactive=False)

    def test_errors_that_another_message_can_avoid_do_not_end_the_chat(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        conversation, _ = talk("hello", source=FakeSource(at(0, ContextOverflow("too long"))))
        assert "error: too long; /reset starts again" in capsys.readouterr().err
        assert conversation.messages == []

    @pytest.mark.parametrize("error", [EngineDead("gone"), ConfigError("no answer")])
    def test_a_lost_server_does_not_end_the_chat(
        self, error: HeadraceError, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = FakeSource(at(2, error))
        source.is_remote = True
        conversation, shown = talk("hello", "x", source=source)
        assert shown == "he\nx\n"
        assert "the arrow key brings the question back" in capsys.readouterr().err
        assert [message["content"] for message in conversation.messages] == ["x", "x"]

    @pytest.mark.parametrize(
        ("error", "interactive"),
        [
            (EngineDead("gone"), True),
            (InvalidRequest("no template", "messages", "no_chat_template"), True),
            (ContextOverflow("too long"), False),
        ],
    )
    def test_other_errors_end_the_chat(self, error: Exception, interactive: bool) -> None:
        with pytest.raises(type(error)):
            talk("hello", source=FakeSource(at(0, error)), interactive=interactive)

    def test_without_a_model_a_question_says_how_to_load_one(self, capsys: pytest.CaptureFixture[str]) -> None:
        conversation = Conversation({}, PlainView(io.StringIO(), sys.stderr), None, True)
        conversation.ask("hello")
        assert "/model NAME" in capsys.readouterr().err
        assert conversation.messages == []


def test_the_clock_of_an_answer() -> None:
    times = iter([10.0, 10.5, 11.5])
    clock = AnswerClock(lambda: next(times))
    assert clock.summary(3) == ""
    clock.piece()
    assert (clock.summary(None), clock.summary(1)) == ("first after 0.50 s", "1 token, first after 0.50 s")
    clock.piece()
    assert clock.summary(3) == "3 tokens, 2.0 tokens/s, first after 0.50 s"


class TestChat:
    def test_lines_from_a_pipe(
        self, source: FakeSource, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n\nagain\n/quit\nnever\n"))
        assert main(["chat", "m", "--system", "s"]) == 0
        assert capsys.readouterr() == ("hello\nagain\n", "")
        assert source.asked[0] == ("model", "m")
        assert source.asked[1][0] == {"role": "system", "content": "s"}
        assert source.closed


class TestRun:
    @pytest.mark.parametrize("words", [["some words"], ["some", "words"]])
    def test_a_question(
        self, source: FakeSource, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal())
        assert main(["run", "m", *words, "--system", "s", "--temperature", "0"]) == 0
        assert capsys.readouterr().out == "some words\n"
        assert source.asked[0] == ("model", "m")
        assert [message["content"] for message in source.asked[1]] == ["s", "some words"]
        assert source.params == [{"max_tokens": 1024, "temperature": 0.0}]
        assert source.closed

    def test_what_is_piped_in_stands_before_the_prompt(
        self, source: FakeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "text"
        file.write_text("a text\n")
        for words, asked in ((["Shorten it."], "a text\n\nShorten it."), ([], "a text")):
            with file.open() as stdin:
                monkeypatch.setattr(sys, "stdin", stdin)
                assert main(["run", "m", *words]) == 0
            assert source.asked[-1][-1]["content"] == asked

    def test_nothing_to_ask(self, source: FakeSource, capsys: pytest.CaptureFixture[str]) -> None:
        with open(os.devnull) as stdin, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdin", stdin)
            assert main(["run", "m"]) == 2
        assert "there is no PROMPT" in capsys.readouterr().err


class FakeLLM:
    """A fake `AsyncLLM` for `LocalSource`: repeats the prompt's ids, one per output."""

    made: list[FakeLLM] = []  # noqa: RUF012
    info = ModelInfo("m", "m", 10, 300, "p", "d")

    def __init__(self, model: str, progress: Callable[[str, float], None] | None, **options: Any) -> None:
        self.model, self.options = model, options
        self.requests: list[GenerateRequest] = []
        self.aborted = self.closed = False
        self.tokenizer = self
        if progress is not None:
            progress("weights", 0.5)
        FakeLLM.made.append(self)

    def encode_chat(self, text: str) -> list[int]:
        return self.encode(text, add_special_tokens=False)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [*text.encode(), *([255] if add_special_tokens else [])]

    def apply_chat_template(self, inputs: ChatInputs) -> str:
        return "".join(f"<{message['content']}>" for message in inputs.messages)

    async def start(self) -> None:
        if "broken" in self.model:
            raise EngineDead("cannot start")

    async def close(self) -> None:
        self.closed = True

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Output]:
        self.requests.append(request)
        try:
            for token in request.prompt:
                await asyncio.sleep(0)
                yield Output(0, str(token) + " ", finish_reason="length", error="lost" if token == ord("!") else None)
        except (GeneratorExit, asyncio.CancelledError):
            self.aborted = True
            raise


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeLLM]]:
    monkeypatch.setattr(local_source, "AsyncLLM", FakeLLM)
    yield FakeLLM
    FakeLLM.made.clear()


PARAMS = {"max_tokens": 50, "temperature": 0.0}


class TestLocal:
    def test_prompts_and_conversations(self, llm: type[FakeLLM]) -> None:
        with contextlib.closing(local_source.LocalSource(Path("m"), {"threads": 2})) as source:
            assert "".join(source.complete("ab", PARAMS)) == "97 98 255 "
            assert source.finish_reason == "length"
            assert "".join(source.chat([{"content": "a"}], PARAMS)) == "60 97 62 "
        (made,) = llm.made
        assert made.options == {"threads": 2}
        assert made.closed
        assert len({request.id for request in made.requests}) == 2

    def test_an_answer_is_limited_to_the_room_in_the_context(self, llm: type[FakeLLM]) -> None:
        with contextlib.closing(local_source.LocalSource(Path("m"), {})) as source:
            list(source.complete("abc", PARAMS))
            list(source.complete("a" * 20, PARAMS))
            list(source.complete("abc", {**PARAMS, "max_tokens": 2}))
        assert [request.params.max_tokens for request in llm.made[0].requests] == [6, 1, 2]

    def test_closing_an_answer_aborts_it(self, llm: type[FakeLLM]) -> None:
        with contextlib.closing(local_source.LocalSource(Path("m"), {})) as source:
            pieces = source.complete("a" * 200_000, PARAMS)
            next(pieces)
            pieces.close()
            assert "".join(source.complete("a", PARAMS)) == "97 255 "
        assert llm.made[0].aborted

    def test_errors_come_through(self, llm: type[FakeLLM]) -> None:
        with (
            contextlib.closing(local_source.LocalSource(Path("m"), {})) as source,
            pytest.raises(EngineDead, match="lost"),
        ):
            list(source.complete("a!b", PARAMS))
        with pytest.raises(EngineDead, match="cannot start"):
            local_source.LocalSource(Path("broken"), {})
        assert all(made.closed for made in llm.made)
