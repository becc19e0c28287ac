"""The options of Headrace by flat names, derived from the fields of `config.py`.

A field of a configuration model is an option of the command line, a keyword argument of `LLM` and `AsyncLLM`, and a row
of docs/configuration.md. A new option needs nothing else.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from headrace.config import Config
from headrace.config_fields import DURATION, SIZE, Bytes, Seconds
from headrace.errors import ConfigError
from headrace.suggestions import did_you_mean

__all__ = ["ENGINE", "SERVER", "Option", "make_config", "value_fault"]

_QUALIFIED = frozenset({"index", "options"})
"""Fields whose name is not clear without the name of their section."""
_WANTED = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "above {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "below {lt}",
    "literal_error": "{expected}",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "finite_number": "a finite number",
    "dict": "a mapping of names to values",
}
"""By the beginning of pydantic's name of a fault; the first that fits counts."""


@dataclass(frozen=True, slots=True)
class Option:
    """One field of the configuration."""

    name: str
    """The keyword argument."""
    section: str
    field: str
    info: FieldInfo

    @property
    def flag(self) -> str:
        """The command-line option."""
        flag = self.name.replace("_", "-")
        if self.is_switch:
            return f"--no-{flag}" if self.info.default else f"--{flag}"
        # Each use of a mapping's flag gives one entry.
        one = flag.removesuffix("es" if flag.endswith("ses") else "s")
        return f"--{one}" if self.is_mapping else f"--{flag}"

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types of the value without None; `Bytes`, `Seconds` and literals are kept."""
        annotation = self.info.annotation
        parts = typing.get_args(annotation) if typing.get_origin(annotation) in (Union, types.UnionType) else ()
        found = tuple(part for part in parts or (annotation,) if part is not type(None))
        # Pydantic moves the metadata of a field that is `Bytes` or `Seconds` and nothing else into its own list.
        if SIZE in self.info.metadata:
            return (Bytes,)
        return (Seconds,) if DURATION in self.info.metadata else found

    @property
    def kind(self) -> Any:
        """`int`, `float`, `str`, `bool`, `Bytes` or `Seconds`; a literal is a string."""
        first = self.kinds[0]
        return str if typing.get_origin(first) is Literal else first

    @property
    def choices(self) -> tuple[str, ...]:
        """The strings that a literal allows; empty for other options."""
        return tuple(typing.get_args(self.kinds[0])) if typing.get_origin(self.kinds[0]) is Literal else ()

    @property
    def is_switch(self) -> bool:
        """True for an option that is on or off; its flag turns it to what is not the default."""
        return self.info.annotation is bool

    @property
    def is_mapping(self) -> bool:
        """True for an option NAME=VALUE, which may be given any number of times."""
        return typing.get_origin(self.info.annotation) is dict

    @property
    def default_text(self) -> str:
        """The default as a user writes it; empty if the description has it."""
        default = self.info.default
        if default is None or default == "auto" or self.is_mapping:
            return ""
        if self.kind is Bytes:
            return f"{default / 2**30:g}GiB"
        return f"{default:g}" if isinstance(default, float) else str(default)

    @property
    def unit(self) -> str:
        """The unit of a number, or the kind of a string: `tokens`, `seconds`, `file`…; empty if the field has none."""
        extra = self.info.json_schema_extra
        return str(extra.get("unit", "")) if isinstance(extra, dict) else ""


def _options(*sections: str) -> Iterator[Option]:
    for section in sections:
        model = Config.model_fields[section].annotation
        assert isinstance(model, type)
        for field, info in model.model_fields.items():
            if (section, field) != ("model", "model"):
                name = f"{section}_{field}" if field in _QUALIFIED else field
                yield Option(name, section, field, info)


ENGINE: Mapping[str, Option] = {
    option.name: option for option in _options("device", "parallel", "model", "scheduler", "cache", "transfer")
}
"""Options of every verb that loads a model, and of `LLM`."""
SERVER: Mapping[str, Option] = {option.name: option for option in _options("server", "loading", "scale")}
"""Options of `headrace serve`."""


def make_config(model: str, given: Mapping[str, Any], flags: bool = False) -> Config:
    """The configuration of a model with the given options, by name; the others keep their defaults.

    Raises ConfigError that names the option; with `flags`, as a flag of the command line.
    """
    values: dict[str, dict[str, Any]] = {section: {} for section in Config.model_fields}
    values["model"]["model"] = model
    known = {**ENGINE, **SERVER}
    for name, value in given.items():
        option = known.get(name)
        if option is None:
            raise ConfigError(
                f"unknown option {name!r}; there are {', '.join(sorted(ENGINE))}{did_you_mean(name, known)}"
            )
        values[option.section][option.field] = value
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        section, field = str(first["loc"][0]), str(first["loc"][1])
        option = next((o for o in known.values() if (o.section, o.field) == (section, field)), None)
        shown, value = option.name if option else field, first["input"]
        where = f"--{shown.replace('_', '-')} {value}" if flags else f"option {shown}={value!r}"
        raise ConfigError(f"{where}: {value_fault(first)}") from None
    _check_role(known, given, flags)
    return config


def _check_role(known: Mapping[str, Option], given: Mapping[str, Any], flags: bool) -> None:
    """Raises ConfigError for an option of blocks that pass between engines if none do."""
    if given.get("role") is not None:
        return
    names = [name for name, value in given.items() if known[name].section == "transfer" and value is not None]
    if names:
        shown = [known[name].flag if flags else name for name in names]
        role = "--role prefill, decode or both" if flags else "role='prefill', 'decode' or 'both'"
        raise ConfigError(
            f"{', '.join(shown)}: no blocks pass between engines without a role: add {role}, or leave it out"
        )


def value_fault(found: Mapping[str, Any]) -> str:
    """Why a field does not take a value, as a clause, from one entry of `ValidationError.errors()`."""
    kind, given = str(found["type"]), found.get("ctx", {})
    bounds = {name: int(at) if isinstance(at, float) and at.is_integer() else at for name, at in given.items()}
    for end, what in _WANTED.items():
        if kind == end or kind.startswith(f"{end}_"):
            return f"it must be {what.format_map(bounds)}"
    return str(found["msg"]).removeprefix("Value error, ")
