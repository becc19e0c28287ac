"""The hook specifications. A plugin is a module or object with some of these functions, each marked with `hookimpl`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pluggy

from headrace.platforms.interface import Platform

__all__ = ["PROJECT", "Hooks", "hookimpl", "hookspec"]

PROJECT = "headrace"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plugin as an implementation. `pluggy.HookimplMarker("headrace")` is the same."""


class Hooks:
    """The hooks that a plugin may implement. They must not load a driver or a heavy library."""

    @hookspec
    def headrace_platforms(self) -> Iterable[Platform]:  # type: ignore[empty-body]
        """Platforms, one object each."""

    @hookspec
    def headrace_models(self) -> Mapping[str, str]:  # type: ignore[empty-body]
        """Architecture, as named in `config.json` or a GGUF file → `module:attribute` of its `models.family.Family`."""

    @hookspec
    def headrace_quant_schemes(self) -> Mapping[str, str]:  # type: ignore[empty-body]
        """`quant_method` of a config.json → `module:attribute` of a function from the `quantization_config` to a
        `quant.scheme.Scheme`."""

    @hookspec
    def headrace_weight_loaders(self) -> Mapping[str, str]:  # type: ignore[empty-body]
        """File suffix with its dot → `module:attribute` of `open(directory: Path) -> models.assemble.Source`. Used if a
        directory with a config.json contains no safetensors files."""

    @hookspec
    def headrace_formats(self) -> Mapping[str, str]:  # type: ignore[empty-body]
        """Name for `--tool-format` or `--reasoning-format` → `module:attribute` of a `formats.states.ToolFormat` or
        `ReasoningFormat`."""

    @hookspec
    def headrace_grammar_backends(self) -> Mapping[str, str]:  # type: ignore[empty-body]
        """Name for `--grammar-backend` → `module:attribute` of a `grammar.backend.MakeGrammarBackend`."""

    @hookspec
    def headrace_drafters(self) -> Mapping[str, str]:  # type: ignore[empty-body]
        """Name for `--speculate` → `module:attribute` of a `speculation.drafter.MakeHostDrafter`."""

    @hookspec
    def headrace_kv_connectors(self) -> Mapping[str, str]:  # type: ignore[empty-body]
        """Name for `--kv-connector` → `module:attribute` of a `transfer.connectors.connector.MakeConnector`."""
