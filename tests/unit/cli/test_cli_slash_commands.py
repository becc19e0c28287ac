"""The commands of a chat."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from cli_fakes import FakeSource

from headrace.cli.answer_view import PlainView
from headrace.cli.conversation import Conversation
from headrace.cli.slash_commands import COMMANDS, SlashCommands


class Chat:
    """A conversation with its commands, and what they said."""

    def __init__(self) -> None:
        self.conversation = Conversation({}, PlainView(io.StringIO()), None, True)
        self.conversation.source = FakeSource()
        self.said: list[str] = []
        self.models: list[str | None] = []
        self.commands = SlashCommands(self.conversation, self.said.append, self.models.append)

    def run(self, line: str) -> str:
        assert self.commands.run(line)
        return self.said.pop() if self.said else ""


@pytest.fixture
def chat() -> Chat:
    return Chat()


def test_help_lists_every_command_and_the_keys(chat: Chat) -> None:
    text = chat.run("/help")
    assert all(command in text and about in text for command, about in COMMANDS.items())
    assert "Ctrl-C" in text
    assert chat.run("/?") == text


@pytest.mark.parametrize("line", ["/bye", "/quit", "/exit", " /bye "])
def test_the_end(chat: Chat, line: str) -> None:
    assert not chat.commands.run(line)


@pytest.mark.parametrize(
    ("line", "hint"),
    [("/resett", "did you mean /reset?"), ("/modle x", "did you mean /model?"), ("/etc/passwd", "/help lists them")],
)
def test_an_unknown_command_is_named(chat: Chat, line: str, hint: str) -> None:
    said = chat.run(line)
    assert said.startswith(f"there is no command {line.split(maxsplit=1)[0]}")
    assert hint in said


def test_the_system_message_may_change_in_the_middle(chat: Chat) -> None:
    assert "/system TEXT" in chat.run("/system")
    chat.conversation.ask("one")
    chat.run("/system be brief")
    assert chat.run("/system") == "be brief"
    assert [message["role"] for message in chat.conversation.messages] == ["system", "user", "assistant"]


def test_reset_keeps_the_system_message(chat: Chat) -> None:
    chat.run("/system s")
    chat.conversation.ask("one")
    assert "starts again" in chat.run("/reset")
    assert chat.conversation.messages == [{"role": "system", "content": "s"}]


def test_models(chat: Chat) -> None:
    chat.run("/model")
    chat.run("/model  other ")
    assert chat.models == [None, "other"]


def test_save(chat: Chat, tmp_path: Path) -> None:
    assert "give a file" in chat.run("/save")
    chat.run("/system s")
    chat.conversation.ask("one é")
    text, data = tmp_path / "a b.md", tmp_path / "chat.json"
    assert chat.run(f"/save {text}") == f"3 messages saved in {text}"
    assert text.read_text() == "**system**\n\ns\n\n**user**\n\none é\n\n**assistant**\n\none é\n"
    chat.run(f"/save {data}")
    assert json.loads(data.read_text())["messages"] == chat.conversation.messages
    assert "is there already" in chat.run(f"/save {data}")
    assert "cannot be written" in chat.run(f"/save {tmp_path}/none/x.md")
