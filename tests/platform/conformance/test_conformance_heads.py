"""Drafts of a head in the kit: green if the operators are right, failed if one of them moves or reads rows wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from broken_backends import Sound, replaced

from headrace.conformance.model_tiers import DeterminismTier
from headrace.conformance.tiny import TinyModel
from headrace.kernels.ops import Batch, Shifted
from headrace.kernels.registry import DRAFTING, HEAD_DRAFTING
from headrace.kernels.spec import OpSpec
from headrace.types import NO_TOKEN


class Drafts(Sound):
    """Its operators for drafts are the references."""

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        return spec.reference if spec in (*DRAFTING, *HEAD_DRAFTING) else super().op(spec)


class LeavesUnshifted(Drafts):
    """One of the results of `shift` is what the plan assumes."""

    def __init__(self, field: str) -> None:
        super().__init__()
        self._field = field

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        def fault(reference: Callable[..., Shifted], batch: Batch, position: torch.Tensor, **rest: Any) -> Shifted:
            moved = reference(batch=batch, position=position, **rest)
            assumed = {"slot_mapping": batch.slot_mapping, "position": position}
            return moved._replace(**{self._field: assumed[self._field]})

        return replaced(spec, "shift", fault) or super().op(spec)


class LosesDrafts(Drafts):
    """It reads no more than two drafts."""

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        def fault(reference: Callable[..., torch.Tensor], **given: Any) -> torch.Tensor:
            found = reference(**given)
            found[:, 2:] = NO_TOKEN
            return found

        return replaced(spec, "read_drafts", fault) or super().op(spec)


def _check(device: Sound) -> None:
    try:
        DeterminismTier().test_drafts_of_a_head_change_no_bit(device, TinyModel(device))
    finally:
        device.close()


def test_undeclared_skips_with_a_reason() -> None:
    with pytest.raises(pytest.skip.Exception, match=r"the optional operator .* is not declared"):
        _check(Sound())


def test_declared_is_tested() -> None:
    _check(Drafts())


@pytest.mark.parametrize("field", ["slot_mapping", "position"])
def test_rows_that_are_not_shifted_are_found(field: str) -> None:
    with pytest.raises(AssertionError, match=r"r\d after \d+ tokens"):
        _check(LeavesUnshifted(field))


def test_drafts_that_are_not_read_are_found() -> None:
    with pytest.raises(AssertionError, match=r"r\d after \d+ tokens"):
        _check(LosesDrafts())
