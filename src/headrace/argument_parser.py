"""The argument parser of every verb: its errors are one line, like all errors of the command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from headrace.errors import shortened
from headrace.foreign_options import FOREIGN_OPTIONS, FOREIGN_VERBS
from headrace.suggestions import did_you_mean

__all__ = ["USER_FAULT", "ArgumentParser"]

USER_FAULT = 2
"""The exit code after an error that has been shown."""


class _HelpWithDefaults(argparse.HelpFormatter):
    """Adds the default to the help of every option that takes a value and does not say it itself."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help
        if not action.option_strings or action.nargs == 0 or action.required or action.default is argparse.SUPPRESS:
            return text
        if text is None or "default" in text.lower():
            return text
        default = action.default
        shown = " ".join(map(str, default)) if isinstance(default, (list, tuple)) else str(default)
        none = default is None or not shown or default == {}
        return f"{text} (default: {'none' if none else shown.replace('%', '%%')})".lstrip()


class ArgumentParser(argparse.ArgumentParser):
    """argparse's parser with errors of one line, in which long arguments are shortened, and which say what an unknown
    word may have meant. Its help has the default of every option. Options are written out: the beginning of one that
    deletes files is no order to do so. Options may stand between the words of an argument that takes several."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": _HelpWithDefaults, "allow_abbrev": False, **kwargs})

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(USER_FAULT, f"error: {shortened(message)} (see {self.prog} --help)\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        parsed, unknown = super().parse_known_args(args, namespace)
        return parsed, self._take_late_words(parsed, unknown)

    def _take_late_words(self, parsed: argparse.Namespace, unknown: list[str]) -> list[str]:
        """argparse gives an argument of several words only those up to the next option. Add the later ones, unless an
        unknown option is among them, whose value one may be; returns what is still unknown."""
        several = [action for action in self._get_positional_actions() if action.nargs in ("*", "+")]
        if not several or any(word.startswith("-") and word != "-" for word in unknown):
            return unknown
        action, words = several[-1], getattr(parsed, several[-1].dest)
        given = [] if words is None or words is action.default else words
        try:
            setattr(parsed, action.dest, [*given, *(self._get_value(action, word) for word in unknown)])
        except argparse.ArgumentError as error:
            self.error(str(error))
        return []

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            hints = [self._hint(word.partition("=")[0]) for word in unknown if word.startswith("-")]
            if not unknown[0].startswith("-"):
                hints.append(self._hint_of_word(unknown[0]))
            self.error(f"unrecognized arguments: {' '.join(unknown)}{''.join(hints)}")
        return parsed

    def _hint(self, option: str) -> str:
        """What an unknown option is here."""
        found = FOREIGN_OPTIONS.get(option)
        if found is None:
            return did_you_mean(option, self._option_string_actions)
        is_ours = found.startswith("--")
        # An option of another verb would not help here.
        if is_ours and found.split()[0].rstrip(",") not in self._option_string_actions:
            return ""
        verb = self.prog.rpartition(" ")[2]
        return f"; {option}{' is' if is_ours else ':'} {found.replace('{verb}', verb)}{' here' * is_ours}"

    def _hint_of_word(self, word: str) -> str:
        """The option that a word without one may belong to; or that there are options alone."""
        kind = "URL" if "://" in word or word.startswith("unix:") else "FILE"
        names = [
            action.option_strings[-1] for action in self._actions if action.option_strings and action.metavar == kind
        ]
        if len(names) == 1:
            return f"; did you mean {names[0]} {word}?"
        return (
            "" if any(not action.option_strings for action in self._actions) else f"; {self.prog} takes options alone"
        )

    def _match_argument(self, action: argparse.Action, arg_strings_pattern: str) -> int:
        try:
            return super()._match_argument(action, arg_strings_pattern)
        except argparse.ArgumentError:
            if action.nargs is not None or not action.option_strings:
                raise
            name = action.option_strings[-1]
            value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
            message = f"it needs a value: {name} {value}, or {name}={value} if that begins with -"
            raise argparse.ArgumentError(action, message) from None

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            what = {int: "a whole number", float: "a number"}.get(action.type)  # type: ignore[call-overload]
            if what is None:
                raise
            raise argparse.ArgumentError(action, f"{arg_string!r} is not {what}") from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            other = FOREIGN_VERBS.get(str(value))
            hint = f"; did you mean {other}?" if other in names else did_you_mean(str(value), names)
            raise argparse.ArgumentError(action, f"invalid choice: {value!r} (choose from {', '.join(names)}){hint}")
