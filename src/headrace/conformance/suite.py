"""What a vendor subclasses."""

from __future__ import annotations

import pytest

from headrace.conformance.collectives import CollectivesTier
from headrace.conformance.contract import ContractTier
from headrace.conformance.copies import CopiesTier
from headrace.conformance.explore import EXAMPLES
from headrace.conformance.faults import FaultsTier
from headrace.conformance.formats import FormatsTier
from headrace.conformance.kv import KVTier
from headrace.conformance.loading import LoadingTier
from headrace.conformance.model import DeterminismTier, ModelTier
from headrace.conformance.operators import OperatorsTier
from headrace.platforms.interface import Platform

__all__ = ["Suite"]


class Suite(
    ContractTier,
    CopiesTier,
    OperatorsTier,
    FormatsTier,
    KVTier,
    ModelTier,
    CollectivesTier,
    DeterminismTier,
    FaultsTier,
    LoadingTier,
):
    """Subclass it in a test file and give it a `device` fixture; that is all.

    A `platform` fixture lets the kit test the platform object too, and open and close devices of its own.
    """

    @pytest.fixture(scope="class")
    @classmethod
    def examples(cls, request: pytest.FixtureRequest) -> int:
        """Calls of an operator and type: `--conformance-examples N` of pytest."""
        asked = request.config.getoption("--conformance-examples", default=None)
        return EXAMPLES if asked is None else int(asked)

    @pytest.fixture(scope="class")
    @classmethod
    def platform(cls) -> Platform | None:
        return None
