"""The models that `headrace serve` serves: those of the command line, or of the file, with their options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.suggestions import did_you_mean

if TYPE_CHECKING:
    from headrace.config import Config
    from headrace.config_file import ConfigFile, ModelEntry
    from headrace.server.model_plan import ModelPlan

__all__ = ["ServedModels", "read_served"]

_DEFAULT = "smollm2"


@dataclass(frozen=True, slots=True)
class ServedModels:
    """All that the user chose, before any model has been looked for."""

    config: Config
    """Of the server; its model is the first."""
    entries: tuple[ModelEntry, ...]
    options: Mapping[str, Any]
    """Of the file, for all models."""
    flags: Mapping[str, Any]

    @property
    def pooled_by(self) -> str | None:
        """As `model_plan.pooled_by`."""
        from headrace.server.model_plan import pooled_by

        return pooled_by(self.config, len(self.entries), self.entries[0].aliases)

    @property
    def plain(self) -> bool:
        """One model that stays loaded: nothing chooses among models or unloads one."""
        return self.pooled_by is None

    @property
    def names(self) -> list[str]:
        """What clients call the models, in their order."""
        from headrace.hub.model_reference import display_name

        return [self.config_of(entry).server.served_model_name or display_name(entry.model) for entry in self.entries]

    def config_of(self, entry: ModelEntry) -> Config:
        """A model's own: flags go before its own options, and those before the file's for all models."""
        from headrace.options import make_config

        given = {**self.options, **entry.options, **self.flags}
        if len(self.entries) > 1:
            given.pop("served_model_name", None)
        name = entry.name if entry.name is not None else given.get("served_model_name")
        if name is not None:
            given["served_model_name"] = name
        return make_config(entry.model, given, flags=True)

    def shown_config(self, entry: ModelEntry) -> Config:
        """`config_of` with the aliases and the preload that the file gives the model itself."""
        config, name = self.config_of(entry), self.names[self.entries.index(entry)]
        own: dict[str, Any] = {}
        if entry.aliases:
            own["aliases"] = {**dict.fromkeys(entry.aliases, name), **config.loading.aliases}
        if entry.preload and config.loading.preload is None:
            own["preload"] = name
        return config.model_copy(update={"loading": config.loading.model_copy(update=own)})

    def plans(self, find: Callable[[str], Path], find_drafter: Callable[[str, bool], Path]) -> list[ModelPlan]:
        """The models with their files, which `find` gets from a name, and `find_drafter` those of what drafts. Raises
        what these raise, and ConfigError for names that clash."""
        from headrace.server.model_plan import ModelPlan, check_names, with_aliases

        names = self.names
        aliases = with_aliases(self.config.loading.aliases, names)
        preload = self._preloaded(names)
        plans = []
        for entry, name in zip(self.entries, names, strict=True):
            path = find(entry.model)
            config = self.config_of(entry)
            scheduler = config.scheduler.with_draft_model(find_drafter)
            server = config.server.model_copy(update={"served_model_name": name})
            model = config.model.model_copy(update={"model": str(path)})
            config = config.model_copy(update={"scheduler": scheduler, "server": server, "model": model})
            others = frozenset({*entry.aliases, *aliases[name]} - {name})
            plans.append(ModelPlan(name, config, path, others, entry.preload or name in preload))
        check_names(plans)
        return plans

    def _preloaded(self, names: Sequence[str]) -> set[str]:
        wanted = self.config.loading.preload
        if wanted is None:
            # A server with one model is ready when the model is.
            return set(names) if len(names) == 1 else set()
        if wanted.strip() == "all":
            return set(names)
        chosen = {name.strip() for name in wanted.split(",") if name.strip()}
        unknown = sorted(chosen - set(names))
        if unknown:
            there = f"{', '.join(names)}{did_you_mean(unknown[0], names)}"
            raise ConfigError(f"--preload {wanted}: no model has the name {unknown[0]!r}; there are {there}")
        return chosen


def read_served(args: argparse.Namespace) -> ServedModels:
    """The models and options of a command line and its file. Flags go before environment variables, those before the
    file. Raises ConfigError that names the option."""
    from headrace.environment import read_environment
    from headrace.options import ENGINE, SERVER, make_config

    file = _file(args.config)
    flags = {name: getattr(args, name) for name in (*ENGINE, *SERVER) if hasattr(args, name)}
    entries = _entries(args.models, file)
    options: dict[str, Any] = {} if file is None else dict(file.options)
    key = read_environment().api_key
    if key is not None:
        options["api_key"] = key
    if len(entries) > 1 and "served_model_name" in flags:
        raise ConfigError("--served-model-name names one model: with several, use --alias NAME=MODEL or a file")
    given = {**options, **flags}
    for entry in entries:
        # What goes with a role may be given for all models, and the role by one.
        if "role" in entry.options:
            given.setdefault("role", entry.options["role"])
    return ServedModels(make_config(entries[0].model, given, flags=True), entries, options, flags)


def _file(path: str | None) -> ConfigFile | None:
    if path is None:
        return None
    from headrace.config_file import read_config_file

    return read_config_file(Path(path))


def _entries(models: Sequence[str], file: ConfigFile | None) -> tuple[ModelEntry, ...]:
    """The models of the command line go before those of the file, whose entries they select if they are there."""
    from headrace.config_file import ModelEntry

    written = () if file is None else file.models
    if not models:
        return written or (ModelEntry(_DEFAULT),)
    return tuple(next((entry for entry in written if entry.called(name)), ModelEntry(name)) for name in models)
