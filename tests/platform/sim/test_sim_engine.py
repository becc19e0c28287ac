"""The real engine on the simulated device: the same scheduler and model, no arithmetic."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest

from headrace import LLM, SamplingParams


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[LLM]:
    path = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(request.config.rootpath / "tests" / "engine")
        importlib.import_module("server_harness").make_model(path)
    with LLM(str(path), platform="sim", num_blocks=40, max_num_seqs=8, max_num_batched_tokens=32) as llm:
        yield llm


def test_a_sequence_is_the_same_alone_in_a_crowd_and_again(llm: LLM) -> None:
    params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True, logprobs=2)
    prompts = [f"prompt number {i}, of several blocks" for i in range(20)]
    crowd = llm.generate(prompts, params)
    assert all(len(one.outputs[0].token_ids) == 20 for one in crowd)
    assert len({tuple(one.outputs[0].token_ids) for one in crowd}) > 1
    for i in (0, 13, 19):
        assert llm.generate(prompts[i], params)[0].outputs == crowd[i].outputs


def test_bans_of_the_engine_hold(llm: LLM) -> None:
    params = SamplingParams(max_tokens=12, min_tokens=12, temperature=1.0, seed=3, allowed_token_ids=(10, 11, 12))
    (one,) = llm.generate("Hello", params)
    assert set(one.outputs[0].token_ids) <= {10, 11, 12}
    assert len(one.outputs[0].token_ids) == 12
