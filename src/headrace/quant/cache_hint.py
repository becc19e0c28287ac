"""Scales that a checkpoint was calibrated with for keys and values in 8 bits: read, checked, and said to be no need of ours.

A cache in 8 bits (`--kv-dtype float8_e4m3` or `int8`) has a scale for every token and head, which no calibration bounds; a
wider one, the default, loses nothing. So the arithmetic that a checkpoint allows for is met either way.
"""

from __future__ import annotations

import logging
from typing import Any

from headrace.errors import CheckpointError, UnsupportedModel, excerpt
from headrace.quant.checks import floats
from headrace.quant.scheme import Reader

__all__ = ["CacheHint"]

_log = logging.getLogger(__name__)
_KINDS = ("scale", "zero_point")


class CacheHint:
    """`kv_cache_scheme` of a `quantization_config`."""

    def __init__(self, scheme: Any, where: str) -> None:
        """`scheme`: compressed-tensors' arguments, AutoFP8's word, or None. Raises UnsupportedModel for other widths than 8 bits."""
        self._given = bool(scheme)
        if not self._given:
            return
        if not isinstance(scheme, (dict, str)):
            raise CheckpointError(f"field 'kv_cache_scheme' is {excerpt(scheme)}: expected an object or a name")
        bits = scheme.get("num_bits") if isinstance(scheme, dict) else 8
        if bits != 8:
            raise UnsupportedModel(f"{where}: kv_cache_scheme of {excerpt(bits)} bits is not supported: 8 are")
        _log.info(
            "%s: kv_cache_scheme: keys and values are kept as kv_dtype says, in 8 bits with a scale a token; "
            "the checkpoint's own scales are not needed",
            where,
        )

    def read(self, module: str, reader: Reader) -> None:
        """Takes up the scales beside a projection of keys or values. Raises CheckpointError where they are no numbers above zero."""
        attention, _, projection = module.rpartition(".")
        if not self._given or projection not in ("k_proj", "v_proj"):
            return
        letter = projection[0]
        for stem in (f"{attention}.{letter}", f"{module}.output"):
            for kind in _KINDS:
                name = f"{stem}_{kind}"
                if not reader.has(name):
                    continue
                value = floats(reader, name) if kind == "scale" else reader.get(name)
                if kind == "scale" and not bool((value > 0).all()):
                    raise reader.error("has scales that are not above zero", name)
