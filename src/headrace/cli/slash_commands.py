"""The commands of a chat: `/help`, `/system`, `/model`, `/save`, `/reset` and `/bye`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from headrace.cli.conversation import Conversation
from headrace.suggestions import did_you_mean
from headrace.wording import counted

__all__ = ["COMMANDS", "SlashCommands"]

COMMANDS = {
    "/help": "show the commands and keys",
    "/system [TEXT]": "set the system message from now on; without TEXT, show it",
    "/model [NAME]": "go on with another model; without NAME, show the models",
    "/save FILE": "write the conversation: messages for FILE.json, otherwise markdown",
    "/reset": "forget the conversation; the system message stays",
    "/bye": "end the chat",
}
_OTHER_NAMES = {"/quit": "/bye", "/exit": "/bye", "/clear": "/reset", "/?": "/help"}
_KEYS = """\
Enter sends. Alt-Enter, Ctrl-J, a backslash before Enter, or text between triple quotation marks: another line.
Ctrl-C stops an answer. Ctrl-D ends the chat."""


class SlashCommands:
    """Carries out commands on a conversation."""

    def __init__(
        self, conversation: Conversation, say: Callable[[str], None], use_model: Callable[[str | None], None]
    ) -> None:
        """`use_model` opens a model by name and puts it into the conversation; with None it shows the choices."""
        self._conversation, self._say, self._use_model = conversation, say, use_model

    def run(self, line: str) -> bool:
        """Carry out a line that begins with a slash; False if it ends the chat."""
        name, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        known = [command.partition(" ")[0] for command in COMMANDS]
        name = _OTHER_NAMES.get(name, name)
        if name == "/bye":
            return False
        if name not in known:
            guess = did_you_mean(name, [*known, *_OTHER_NAMES])
            self._say(
                f"there is no command {name}{guess or '; /help lists them'}; a space before it makes it a message"
            )
            return True
        getattr(self, f"_{name[1:]}")(rest)
        return True

    def _help(self, rest: str) -> None:
        self._say("\n".join([*(f"{command:<16}{text}" for command, text in COMMANDS.items()), _KEYS]))

    def _system(self, rest: str) -> None:
        if rest:
            self._conversation.system = rest
            self._say("the system message is set")
        else:
            self._say(self._conversation.system or "there is no system message; /system TEXT sets one")

    def _model(self, rest: str) -> None:
        self._use_model(rest or None)

    def _reset(self, rest: str) -> None:
        self._conversation.turns.clear()
        self._say("the conversation starts again")

    def _save(self, rest: str) -> None:
        if not rest:
            self._say("give a file: /save chat.md or /save chat.json")
            return
        path = Path(rest).expanduser()
        messages = self._conversation.messages
        if path.suffix == ".json":
            text = json.dumps({"messages": messages}, indent=1, ensure_ascii=False) + "\n"
        else:
            text = "\n".join(f"**{message['role']}**\n\n{message['content'].strip()}\n" for message in messages)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            self._say(f"{path} is there already: give another name")
        except OSError as error:
            self._say(f"{path} cannot be written: {error.strerror or error}")
        else:
            self._say(f"{counted(len(messages), 'message')} saved in {path}")
