"""Command-line options that are derived from the configuration, for every verb.

Only argparse is imported until options are added to a parser, so that `headrace --help` is fast.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.options import Option

__all__ = ["add_device_option", "add_engine_options", "add_server_options", "engine_options"]


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the engine's options. An option that the user leaves out keeps the configuration's default."""
    from headrace.options import ENGINE

    group = parser.add_argument_group("engine")
    for option in ENGINE.values():
        _add(group, option)


def add_server_options(parser: argparse.ArgumentParser) -> None:
    from headrace.options import SERVER

    group = parser.add_argument_group("server")
    for option in SERVER.values():
        _add(group, option)


def add_device_option(group: argparse._ActionsContainer, default: object) -> None:
    """Add `--device-option NAME=VALUE`, which may be given any number of times and becomes a dictionary."""
    text = "an option of the platform itself; may be given again (default: none)"
    group.add_argument(
        "--device-option", dest="device_options", action=_Pairs, default=default, metavar="NAME=VALUE", help=text
    )


def _add(group: argparse._ArgumentGroup, option: Option) -> None:
    """Add one field as a command-line option."""
    if option.name == "device_options":
        add_device_option(group, argparse.SUPPRESS)
    elif option.is_mapping:
        group.add_argument(
            option.flag,
            dest=option.name,
            action=_TextPairs,
            default=argparse.SUPPRESS,
            metavar="NAME=VALUE",
            help=f"{_help(option)}; may be given again",
        )
    elif option.is_switch:
        group.add_argument(
            option.flag,
            dest=option.name,
            action="store_false" if option.info.default else "store_true",
            default=argparse.SUPPRESS,
            help=_help(option),
        )
    else:
        group.add_argument(
            option.flag,
            dest=option.name,
            type=_converter(option),
            default=argparse.SUPPRESS,
            metavar=_metavar(option),
            help=_help(option),
        )


def _help(option: Option) -> str:
    """The field's description in argparse's syntax, with the default if there is one."""
    text = str(option.info.description).rstrip(".")
    text = f"do not {text[0].lower()}{text[1:]}" if option.is_switch and option.info.default else text
    if not option.is_switch and "default:" not in text.lower():
        default = option.default_text or ("auto" if option.info.default == "auto" else "none")
        text = f"{text} (default: {default})"
    return text.replace("%", "%%")


def _metavar(option: Option) -> str:
    if option.choices:
        return "{" + ",".join(option.choices) + "}"
    kind = option.kind
    return option.unit.upper() or ("N" if kind is int else "SIZE" if kind is not str else "TEXT")


def _converter(option: Option) -> Callable[[str], Any]:
    """The function that converts the option's text. A literal is checked later, with the complete configuration."""
    from headrace.config_fields import Seconds, parse_duration, parse_size

    kind = option.kind
    return kind if kind in (int, float, str) else _reader(parse_duration if kind is Seconds else parse_size)


def _reader(parse: Callable[[object], object]) -> Callable[[str], object]:
    def read(text: str) -> object:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


class _TextPairs(argparse.Action):
    """Collects NAME=VALUE in a dictionary."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, _: Any = None
    ) -> None:
        name, equals, value = str(values).partition("=")
        if not equals:
            raise argparse.ArgumentError(self, f"{values!r}: write NAME=VALUE")
        known = dict(getattr(namespace, self.dest, None) or {})
        setattr(namespace, self.dest, {**known, name: self.read(value)})

    def read(self, value: str) -> int | str:
        return value


class _Pairs(_TextPairs):
    """The same with values that may be whole numbers."""

    def read(self, value: str) -> int | str:
        return int(value) if value.lstrip("-").isdigit() else value


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options that the user gave, as keyword arguments of `LLM` and `AsyncLLM`."""
    from headrace.options import ENGINE

    return {name: getattr(args, name) for name in ENGINE if hasattr(args, name)}
