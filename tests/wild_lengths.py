"""Steps whose sequences have lengths that cannot be, as behind a step that failed: the same for every form of the
operators that draft and place."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from headrace.kernels.registry import DRAFTING, HEAD_DRAFTING
from headrace.types import GIVEN, ON_DEVICE

__all__ = ["BY_NAME", "CASES", "kept", "wild"]

BY_NAME = {spec.name: spec for spec in (*DRAFTING, *HEAD_DRAFTING)}
FIRST, LAST = -(2**31), 2**31 - 1

BEYOND_TABLE = 0.5
"""Stands for one token more than the block table has room for, within the history."""

CASES = [(name, length) for name in ("ngram", "read_drafts", "place", "shift") for length in (FIRST, -7, 151, LAST)]
CASES += [("place", 0), ("place", BEYOND_TABLE), ("shift", 0)]
"""Operators and lengths. A history has at most 150 columns."""


def wild(name: str, length: float) -> dict[str, Any]:
    """Arguments of an operator with two sequences or more whose positions the device knows, the first with `length`."""
    given = next(filter(_fits, (_drawn(name, seed) for seed in range(999))))
    first = _own(given)[0]
    if length == BEYOND_TABLE:
        length = given["batch"].block_tables.shape[1] * given["size"] + 1
        text, lengths = given["history"].split([given["history"].shape[1] - 1, 1], 1)
        given["history"] = torch.cat([text, text.new_zeros(len(text), length), lengths], 1)
    given["history"][given["batch"].slots[first], -1] = int(length)
    if "lengths" in given:
        given["lengths"][first] = ON_DEVICE
    return given


def _drawn(name: str, seed: int) -> dict[str, Any]:
    return BY_NAME[name].generate(np.random.default_rng(seed), torch.device("cpu"), "float32")


def _fits(given: dict[str, Any]) -> bool:
    own = _own(given)
    return len(own) > 1 and bool(given["batch"].query_start.diff()[own[0]] > 1)


def kept(given: dict[str, Any]) -> dict[str, Any]:
    """The same step, in which the host gives the positions of that sequence."""
    calm = copy.deepcopy(given)
    (key,) = {"lengths", "bounds"} & given.keys()
    calm[key][_own(given)[0]] = GIVEN
    return calm


def _own(given: dict[str, Any]) -> torch.Tensor:
    (key,) = {"lengths", "bounds"} & given.keys()
    return torch.nonzero(given[key] != GIVEN)[:, 0]
