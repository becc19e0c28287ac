"""`kv_transfer_params` between two engines whose blocks differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.client.api import GenerateRequest, ModelInfo
from headrace.engine.wire import TransferInfo
from headrace.errors import InvalidRequest
from headrace.sampling import SamplingParams
from headrace.server.kv_transfer import EngineRole, hand_over, with_transfer

_JOB = GenerateRequest("r", tuple(range(50)), SamplingParams(max_tokens=1), salt="s")


def _info(layout: bytes, size: int) -> ModelInfo:
    transfer = TransferInfo("tcp", "tcp:a:1", 5, layout * 16, 30.0)
    return ModelInfo("m", "/m", 512, 100, "cpu", "float32", block_size=size, transfer=transfer)


@pytest.mark.parametrize(("layout", "size"), [(b"a", 16), (b"b", 32), (b"b", 64)])
def test_an_engine_with_other_blocks_knows_the_prompt(layout: bytes, size: int) -> None:
    given = hand_over(_info(b"a", 16), replace(_JOB, gives_blocks=True), [7])
    assert isinstance(given, dict)
    role, here = EngineRole("decode", 5.0), _info(layout, size)
    (job,) = with_transfer(role, here, given, [_JOB])
    assert job.remote is not None
    assert (job.remote.address, job.remote.tokens, job.remote.epoch) == ("tcp:a:1", 50, 5)
    for other in (replace(_JOB, prompt=tuple(range(1, 51))), replace(_JOB, salt="t")):
        with pytest.raises(InvalidRequest, match="another prompt"):
            with_transfer(role, here, given, [other])


@pytest.mark.parametrize("field", ["remote_num_tokens", "remote_epoch"])
@pytest.mark.parametrize("value", [-1, 10**30])
def test_numbers_that_no_engine_gives_are_refused(field: str, value: int) -> None:
    """They would not fit into a message to the engine."""
    given = {"do_remote_prefill": True, "remote_address": "tcp:a:1", field: value}
    with pytest.raises(InvalidRequest, match=f"`{field}` must be 0 to 4294967295, got "):
        with_transfer(EngineRole("decode", 5.0), _info(b"a", 16), given, [_JOB])
