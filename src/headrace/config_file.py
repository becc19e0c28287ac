"""The file of `headrace serve --config`: options by flat names or in parts, and the models with options of their own.

port: 8000
cache:
  kv_memory: 2GiB
models:
  - smollm2
  - model: ./qwen
    name: qwen
    aliases: [gpt-4o]
    threads: 4
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from headrace.config import Config
from headrace.config_text import Place, WrittenConfig, read_written
from headrace.errors import excerpt, truncate
from headrace.options import ENGINE, SERVER, Option, value_fault

__all__ = ["ConfigFile", "ModelEntry", "read_config_file"]

OF_MODEL = ("tool_format", "reasoning_format", "keep_alive")
"""Options of the server that a model may have for itself."""
_OWN = ("model", "name", "aliases", "preload")
"""What an entry of `models` has besides options."""
_KNOWN = {**ENGINE, **SERVER}


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model of a server."""

    model: str
    """A directory, a .gguf file or a name."""
    name: str | None = None
    """What clients call it; None: its own name."""
    aliases: tuple[str, ...] = ()
    preload: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    """Its own, by name."""

    def called(self, name: str) -> bool:
        """True if a user means this model by `name`."""
        return name in (self.model, self.name, *self.aliases)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    options: Mapping[str, Any]
    """For the server and for every model, by name."""
    models: tuple[ModelEntry, ...]


def read_config_file(file: Path) -> ConfigFile:
    """Raises ConfigError that names the option, the file and, where it is known, the line."""
    written = read_written(file)
    values = dict(written.values)
    entries = values.pop("models", None)
    single = values.pop("model") if isinstance(values.get("model"), str) else None
    options = _options(written, values, (), _KNOWN, ("model", "models"))
    inner = written.values.get("model")
    if single is None and isinstance(inner, dict) and "model" in inner:
        single = _text(written, inner["model"], ("model", "model"))
    if single is not None and entries is not None:
        raise written.error(("models",), "`model` and `models` are given: put the one model among the others")
    if entries is None:
        return ConfigFile(options, () if single is None else (ModelEntry(single),))
    return ConfigFile(options, tuple(_entries(written, entries)))


def _options(
    written: WrittenConfig, values: Mapping[str, Any], place: Place, known: Mapping[str, Option], own: tuple[str, ...]
) -> dict[str, Any]:
    """The options of one mapping, by name, checked. `own`: further keys, for the errors."""
    found: dict[str, tuple[Option, Any, Place]] = {}
    for option, value, at in _flat(written, values, place, known, own):
        if option.name in found:
            raise written.error(at, f"`{option.name}` is given twice: by its name, and in the part `{option.section}`")
        found[option.name] = (option, value, at)
    for section in {option.section for option, _, _ in found.values()}:
        part = {option.field: (value, at) for option, value, at in found.values() if option.section == section}
        _check(written, section, part)
    return {name: value for name, (_, value, _) in found.items()}


def _flat(
    written: WrittenConfig, values: Mapping[str, Any], place: Place, known: Mapping[str, Option], own: tuple[str, ...]
) -> Iterator[tuple[Option, Any, Place]]:
    sections = {option.section for option in known.values()}
    for key, value in values.items():
        at = (*place, key)
        option = known.get(key.replace("-", "_"))
        if option is not None:
            yield option, value, at
        elif key in sections and isinstance(value, dict):
            fields = {option.field: option for option in known.values() if option.section == key}
            for inner, one in value.items():
                if (key, inner) == ("model", "model"):
                    continue
                found = fields.get(str(inner).replace("-", "_"))
                if found is None:
                    raise _unknown(written, (*at, inner), str(inner), [*fields], f" in the part `{key}`")
                yield found, one, (*at, inner)
        elif key in sections:
            raise written.error(
                at, f"`{key}` is a part: it holds options, such as {', '.join(_fields_of(known, key)[:3])}"
            )
        else:
            raise _unknown(written, at, key, [*known, *sections, *own], "")


def _fields_of(known: Mapping[str, Option], section: str) -> list[str]:
    return sorted(option.field for option in known.values() if option.section == section)


def _unknown(written: WrittenConfig, at: Place, key: str, names: list[str], where: str) -> Exception:
    near = difflib.get_close_matches(key.replace("-", "_").removeprefix("no_"), names, 1, 0.6)
    elsewhere = key.replace("-", "_") in _KNOWN
    hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(sorted(names))}"
    if elsewhere and not where:
        hint = "it is for the whole server: it cannot stand in an entry of `models`"
    return written.error(at, f"unknown option `{truncate(key)}`{where}: {hint}")


def _check(written: WrittenConfig, section: str, fields: Mapping[str, tuple[Any, Place]]) -> None:
    """Raise ConfigError for the first value that its field does not take."""
    model = Config.model_fields[section].annotation
    assert isinstance(model, type)
    try:
        model.model_validate({field: value for field, (value, _) in fields.items()})
    except ValidationError as error:
        for one in error.errors():
            field = str(one["loc"][0]) if one["loc"] else ""
            # A rule about several options is checked again, with the flags.
            if field in fields:
                value, at = fields[field]
                raise written.error(at, f"`{at[-1]}` {excerpt(value)}: {value_fault(one)}") from None


def _entries(written: WrittenConfig, entries: Any) -> Iterator[ModelEntry]:
    if not isinstance(entries, list) or not entries:
        raise written.error(("models",), "`models` is a list of models: names, or mappings with `model` and options")
    known = {name: option for name, option in _KNOWN.items() if name in ENGINE or name in OF_MODEL}
    for index, entry in enumerate(entries):
        place: Place = ("models", index)
        if isinstance(entry, str):
            yield ModelEntry(entry)
            continue
        if not isinstance(entry, dict) or not isinstance(entry.get("model"), str):
            raise written.error(place, "an entry of `models` is a name, or a mapping with `model`, its name or path")
        fields = {str(key): value for key, value in entry.items()}
        aliases = fields.get("aliases") or []
        name = None if fields.get("name") is None else _text(written, fields["name"], (*place, "name"))
        preload = fields.get("preload", False)
        if not isinstance(preload, bool):
            raise written.error((*place, "preload"), "`preload` is true or false")
        if not isinstance(aliases, list):
            raise written.error((*place, "aliases"), "`aliases` is a list of names")
        others = {key: value for key, value in fields.items() if key not in _OWN}
        yield ModelEntry(
            fields["model"],
            name,
            tuple(_text(written, alias, (*place, "aliases", at)) for at, alias in enumerate(aliases)),
            preload,
            _options(written, others, place, known, _OWN),
        )


def _text(written: WrittenConfig, value: Any, at: Place) -> str:
    if not isinstance(value, str) or not value.strip():
        raise written.error(at, f"{excerpt(value)}: a name is a text that is not empty")
    return value
