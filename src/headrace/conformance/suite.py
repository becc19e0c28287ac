"""The test class that a vendor subclasses."""

from __future__ import annotations

import pytest

from headrace.conformance.collectives_tier import CollectivesTier
from headrace.conformance.contract_tier import ContractTier
from headrace.conformance.copies_tier import CopiesTier
from headrace.conformance.explore import EXAMPLES
from headrace.conformance.faults_tier import FaultsTier
from headrace.conformance.formats_tier import FormatsTier
from headrace.conformance.kv_tier import KVTier
from headrace.conformance.loading_tier import LoadingTier
from headrace.conformance.model_tiers import DeterminismTier, ModelTier
from headrace.conformance.operators_tier import OperatorsTier
from headrace.conformance.timing_tier import TimingTier
from headrace.platforms.interface import Platform

__all__ = ["Suite"]


class Suite(
    ContractTier,
    CopiesTier,
    OperatorsTier,
    FormatsTier,
    KVTier,
    ModelTier,
    TimingTier,
    CollectivesTier,
    DeterminismTier,
    FaultsTier,
    LoadingTier,
):
    """Subclass it in a test file and give it a `device` fixture; that is all.

    With a `platform` fixture the kit also tests the platform object, and opens and closes more devices.
    """

    @pytest.fixture(scope="class")
    @classmethod
    def examples(cls, request: pytest.FixtureRequest) -> int:
        """Calls per operator and dtype: `--conformance-examples N` of pytest."""
        examples = request.config.getoption("--conformance-examples", default=None)
        return EXAMPLES if examples is None else int(examples)

    @pytest.fixture(scope="class")
    @classmethod
    def platform(cls) -> Platform | None:
        return None
