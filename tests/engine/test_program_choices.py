"""`select` in the engine: one request, with the very log-probabilities of each choice alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_harness import PROGRAM_OPTIONS as OPTIONS

from headrace import LLM, AsyncLLM, SamplingParams
from headrace import lang as hl
from headrace.client.api import GenerateRequest

METHODS = ("greedy", "mean", "sum", "unconditional")
CHOICES = ["e", "t", " a", "yes", "no", "not at all", "e"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[GenerateRequest]:
    found: list[GenerateRequest] = []
    generate = AsyncLLM.generate

    def recording(self: AsyncLLM, request: GenerateRequest) -> Any:
        found.append(request)
        return generate(self, request)

    monkeypatch.setattr(AsyncLLM, "generate", recording)
    return found


@hl.program
def choose(s: hl.State, choices: list[str], method: hl.Static[str]) -> None:
    s.text("A text of some length, so that it fills several blocks of the cache:")
    s.gen("word", max_tokens=7, ignore_eos=True)
    s.text(". So:")
    s.select("choice", choices, method=method)
    s.text(" and")
    s.gen("rest", max_tokens=5, ignore_eos=True)


def alone(cold: LLM, prefix: tuple[int, ...], ids: list[int]) -> list[float]:
    """The log-probabilities of a choice's tokens, by a request of its own."""
    params = SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprobs_start=len(prefix))
    (answer,) = cold.generate([[*prefix, *ids]], params)
    assert answer.prompt_logprobs is not None
    return [float(entry.logprob or 0.0) for entry in answer.prompt_logprobs[len(prefix) :]]


@pytest.mark.parametrize("method", METHODS)
def test_scores_are_those_of_each_choice_alone(method: str, llm: LLM, cold: LLM, asked: list[GenerateRequest]) -> None:
    found = llm.run(choose, CHOICES[:6], method, seed=3)
    scored = [one for one in asked if one.rivals is not None and one.params.prompt_logprobs_start]
    rows = {choice: llm.tokenizer.encode(choice, False) for choice in CHOICES[:6]}
    longer = [ids for ids in rows.values() if len(ids) > 1]
    assert len(scored) == max(1, len(longer)), "first tokens need no request of their own"
    prefix = scored[0].prompt[: scored[0].params.prompt_logprobs_start]
    here = {choice: alone(cold, prefix, ids) for choice, ids in rows.items()}
    scores = found.nodes[1].scores
    assert scores is not None
    for choice, row in here.items():
        if method == "unconditional":
            bare = alone(cold, (), rows[choice])
            expected = sum(one - other for one, other in zip(row, bare, strict=True)) / len(row)
        else:
            expected = sum(row) / (1 if method == "sum" else len(row))
        assert scores[choice] == expected
    assert llm.stats().scheduler.blocks_held == 0


def test_choices_that_were_scored_before_are_not_computed_again(tiny_llama: Path, llm: LLM) -> None:
    """The same choices, and others that begin alike."""
    expected = [llm.run(choose, choices, "mean", seed=3) for choices in (["yes no", "yes we"], ["yes no", "yes not"])]
    with LLM(str(tiny_llama), **OPTIONS) as other:
        first = other.run(choose, ["yes no", "yes we"], "mean", seed=3)
        again = other.run(choose, ["yes no", "yes we"], "mean", seed=3)
        longer = other.run(choose, ["yes no", "yes not"], "mean", seed=3)
        assert [one.nodes[1].scores for one in (first, again)] == [expected[0].nodes[1].scores] * 2
        assert longer.nodes[1].scores == expected[1].nodes[1].scores
        assert again.nodes[1].usage.cached_tokens > first.nodes[1].usage.cached_tokens
        assert other.stats().scheduler.blocks_held == 0


def test_choices_of_one_token_stay_in_the_slot(llm: LLM, asked: list[GenerateRequest]) -> None:
    singles = [one for one in map(chr, range(97, 123)) if len(llm.tokenizer.encode(one, False)) == 1][:5]
    assert len(singles) == 5
    found = llm.run(choose, singles, "greedy", seed=3)
    first, scored, last = asked
    assert (scored.extends, last.extends) == (first.id, scored.id)
    assert scored.rivals is not None
    assert len(scored.rivals) == 4
    gen, select, then = (node.usage for node in found.nodes)
    assert select.cached_tokens >= gen.prompt_tokens + gen.completion_tokens - 1
    assert then.cached_tokens >= select.prompt_tokens - 2, "the prefix is computed once"
    assert llm.stats().scheduler.blocks_held == 0


@pytest.mark.parametrize("options", [{"speculate": "ngram"}, {"max_num_batched_tokens": 16}, {"prefix_caching": False}])
def test_in_any_engine(tiny_llama: Path, llm: LLM, options: dict[str, Any]) -> None:
    expected = llm.run(choose, CHOICES[:6], "greedy", seed=3)
    with LLM(str(tiny_llama), **{**OPTIONS, **options}) as other:
        found = other.run(choose, CHOICES[:6], "greedy", seed=3)
        assert found.outputs == expected.outputs
        assert [one.scores for one in found.nodes] == [one.scores for one in expected.nodes]
        assert other.stats().scheduler.blocks_held == 0
