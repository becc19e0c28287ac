"""One step after another: what plans look like, and that company, chunking and order change no answer."""

from __future__ import annotations

import random
from dataclasses import fields, replace

import numpy as np
import pytest
from core_driver import SMALL, Driver, naive, request, same

from headrace.core import CoreConfig, Scheduler
from headrace.core.block_pool import BlockPool
from headrace.types import NO_TOKEN, Request, StepPlan, StepResult


def many(count: int, seed: int = 1, **params: object) -> list[Request]:
    rng = random.Random(seed)
    stem = [rng.randrange(2, 64) for _ in range(40)]
    return [
        request(
            f"r{i}",
            stem[: rng.randrange(1, 40)] + [rng.randrange(2, 64) for _ in range(rng.randrange(1, 30))],
            rng.randrange(1, 40),
            arrival=float(i),
            seed=i % 3,
            **params,
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [5, 32, 500])
@pytest.mark.parametrize("caching", [False, True])
def test_same_answer_in_any_batch(depth: int, budget: int, caching: bool) -> None:
    config = replace(SMALL, max_num_batched_tokens=budget, prefix_caching=caching)
    driver = Driver(config, depth, eos_every=20)
    requests = many(24, logprobs=2, repetition_penalty=1.1)
    driver.add(*requests)
    records = driver.run()
    for one in requests:
        same(records[one.id], naive(one, config, 20))


def test_first_prefill_then_decode_with_the_token_left_on_the_device() -> None:
    driver = Driver()
    driver.add(request("a", [5, 6, 7, 8, 9], 3))
    first, second = driver.schedule(), driver.schedule()
    assert first is not None
    assert second is not None
    assert first.token_ids.tolist() == [5, 6, 7, 8, 9]
    assert first.positions.tolist() == [0, 1, 2, 3, 4]
    assert (first.query_start.tolist(), first.context_lens.tolist()) == ([0, 5], [5])
    assert (first.rows.tolist(), first.row_seq.tolist(), first.row_target.tolist()) == ([4], [0], [NO_TOKEN])
    assert first.slot_mapping.tolist() == [int(first.block_tables[0, p // 4]) * 4 + p % 4 for p in range(5)]
    assert second.token_ids.tolist() == [NO_TOKEN]
    assert (second.positions.tolist(), second.context_lens.tolist()) == ([5], [6])
    assert second.slots.tolist() == first.slots.tolist()
    assert second.sampling.position.tolist() == [6]
    assert (first.num_rows, first.num_seqs, first.prompt_lens.tolist()) == (1, 1, [5])


def test_decodes_come_first_and_share_the_step_with_a_chunk() -> None:
    driver = Driver(replace(SMALL, max_num_batched_tokens=8))
    driver.add(request("a", [5, 6], 9))
    driver.step()
    driver.add(request("b", range(10, 30), 2))
    plan = driver.step()
    assert plan is not None
    assert plan.request_ids == ("a", "b")
    assert plan.token_ids.tolist() == [NO_TOKEN, *range(10, 17)]
    assert plan.query_start.tolist() == [0, 1, 8]
    assert plan.rows.tolist() == [0], "the middle of a prompt needs no logits"


def test_plans_have_the_documented_types() -> None:
    driver = Driver()
    driver.add(*many(6, prompt_logprobs=1, repetition_penalty=2.0, logit_bias=((3, 1.5),)))
    kinds = {"seed": np.uint64, "bias_value": np.float32, "allowed": np.uint32}

    def each(part: object) -> None:
        for one in fields(part):  # type: ignore[arg-type]
            value = getattr(part, one.name)
            if isinstance(value, np.ndarray):
                assert value.dtype == kinds.get(one.name, np.int32), one.name
                assert value.flags.c_contiguous, one.name

    while (plan := driver.step()) is not None:
        each(plan)
        each(plan.sampling)
        rows = plan.num_rows
        assert len(plan.row_seq) == len(plan.row_target) == rows
        assert len(plan.sampling.seed) == len(plan.sampling.position) == rows
        assert (np.diff(plan.rows) > 0).all()
        assert plan.block_tables.shape[0] == plan.num_seqs == len(plan.slots) == len(plan.prompt_lens)


def test_length_is_foreseen_so_that_no_step_is_wasted() -> None:
    driver = Driver()
    driver.add(request("a", range(2, 12), 7))
    record = driver.run()["a"]
    assert record.reason == "length"
    assert driver.device.computed == 10 + 7 - 1


def test_a_stop_token_drops_what_is_under_way() -> None:
    one = request("a", range(2, 12), 50)
    expected = naive(one, eos_every=4)
    assert expected.reason == "stop"
    driver = Driver(eos_every=4)
    driver.add(one)
    record = driver.run()["a"]
    same(record, expected)
    assert driver.device.computed == 10 + len(record.tokens), "one token too many, and no more"


@pytest.mark.parametrize(
    ("params", "reason"), [({"ignore_eos": True}, "length"), ({"min_tokens": 30}, "length"), ({}, "stop")]
)
def test_end_tokens(params: dict[str, object], reason: str) -> None:
    one = request("a", range(2, 12), 30, **params)
    driver = Driver(eos_every=3)
    driver.add(one)
    record = driver.run()["a"]
    same(record, naive(one, eos_every=3))
    assert record.reason == reason


def test_stop_token_ids_end_a_sequence_and_are_reported() -> None:
    free = naive(request("a", [9, 8, 7], 20)).tokens
    driver = Driver()
    driver.add(request("a", [9, 8, 7], 20, stop_token_ids=(free[6],)))
    record = driver.run()["a"]
    assert record.reason == "stop"
    assert record.tokens == free[: free.index(free[6]) + 1]


def test_min_tokens_bans_end_tokens_until_then() -> None:
    driver = Driver()
    driver.add(request("a", [9, 8], 4, min_tokens=2, stop_token_ids=(7,), logit_bias=((3, -2.0),)))
    seen = []
    while (plan := driver.step()) is not None:
        batch = plan.sampling
        seen.append(
            list(zip(batch.bias_row.tolist(), batch.bias_token.tolist(), batch.bias_value.tolist(), strict=True))
        )
    banned = [(0, 3, -2.0), (0, 1, -np.inf), (0, 7, -np.inf)]
    assert seen == [banned, banned, [(0, 3, -2.0)], [(0, 3, -2.0)]]


def test_masks_stand_beside_rows_without_one() -> None:
    driver = Driver()
    driver.add(request("a", [9, 8], 4), request("b", [9], 4, allowed_token_ids=(0, 31, 32, 63)), request("c", [3], 4))
    plan = driver.step()
    assert plan is not None
    assert plan.sampling.allowed_row is not None
    assert plan.sampling.allowed is not None
    assert plan.sampling.allowed_row.tolist() == [-1, 0, -1]
    assert plan.sampling.allowed.tolist() == [[1 | 1 << 31, 1 | 1 << 31]]
    assert set(driver.run()["b"].tokens) <= {0, 31, 32, 63}


def test_sampling_parameters_reach_their_rows() -> None:
    driver = Driver()
    a = request("a", [9, 8, 7], 4, temperature=0.5, top_k=3, seed=2**64 - 1, presence_penalty=0.25, logprobs=3)
    b = request("b", [5], 4, temperature=0.0, top_p=0.5, min_p=0.125, frequency_penalty=-1.0, repetition_penalty=1.5)
    driver.add(a, b)

    def rows(plan: StepPlan | None) -> list[tuple[float, ...]]:
        assert plan is not None
        s = plan.sampling
        assert s.num_logprobs == 3
        columns = (
            s.params["temperature"],
            s.params["top_p"],
            s.params["top_k"],
            s.params["min_p"],
            s.params["repetition_penalty"],
            s.params["presence_penalty"],
            s.params["frequency_penalty"],
        )
        return list(zip(*(c.tolist() for c in (*columns, s.seed, s.position)), strict=True))

    row_a = (0.5, 1.0, 3, 0.0, 1.0, 0.25, 0.0, 2**64 - 1)
    row_b = (0.0, 0.5, 0, 0.125, 1.5, 0.0, -1.0, 0)
    assert rows(driver.step()) == [(*row_a, 3), (*row_b, 1)]
    assert rows(driver.step()) == [(*row_a, 4), (*row_b, 2)]


def test_no_logprobs_are_computed_where_none_are_asked_for() -> None:
    driver = Driver()
    driver.add(request("a", [9, 8, 7], 4))
    for _ in range(3):
        plan = driver.step()
        assert plan is not None
        assert plan.sampling.num_logprobs == -1


def test_each_gets_the_alternatives_it_asked_for() -> None:
    driver = Driver()
    driver.add(
        *(request(f"r{k}", [9, k + 2], 3, logprobs=k) for k in (None, 0, 2, 5) if k is not None), request("n", [4], 3)
    )
    records = driver.run()
    assert records["n"].logprobs == []
    for k in (0, 2, 5):
        assert [len(entry.top) for entry in records[f"r{k}"].logprobs] == [k] * 3


def test_no_output_at_all() -> None:
    """`echo` with `max_tokens` 0 scores the prompt and samples nothing."""
    one = request("a", range(2, 45), 0, prompt_logprobs=2)
    driver = Driver()
    driver.add(one)
    record = driver.run()["a"]
    same(record, naive(one))
    assert record.tokens == []
    assert record.prompt_logprobs is not None
    assert len(record.prompt_logprobs) == 43


def test_more_slots_than_budget() -> None:
    config = replace(SMALL, max_num_seqs=8, max_num_batched_tokens=3)
    driver = Driver(config)
    requests = many(10)
    driver.add(*requests)
    for one in requests:
        same(driver.run()[one.id], naive(one, config))


def test_stats_count_what_is_stored() -> None:
    driver = Driver()
    driver.add(
        request("a", range(2, 12), 9), request("b", range(2, 12), 9, arrival=1.0), request("c", [3] * 5, 9, arrival=2)
    )
    driver.schedule()
    stats = driver.scheduler.stats()
    assert (stats.running, stats.waiting, stats.prompt_tokens, stats.cached_tokens) == (3, 0, 25, 8)
    assert (stats.blocks_held, stats.kv_tokens) == (3 + 1 + 2, 10 + 2 + 5)
    assert stats.blocks_free == 64 - 6


def test_nothing_to_do() -> None:
    driver = Driver()
    assert not driver.scheduler.has_work()
    assert driver.schedule() is None
    driver.add(request("a", [3], 1))
    assert driver.scheduler.has_work()
    driver.schedule()
    assert driver.schedule() is None, "its only token is under way"
    assert driver.scheduler.has_work()
    driver.commit()
    assert not driver.scheduler.has_work()


def test_plans_are_committed_in_order() -> None:
    driver = Driver(CoreConfig(9, 4, 2, 8, 32, 64))
    driver.add(request("a", [3, 4], 9))
    driver.schedule()
    driver.schedule()
    plan, result = driver.in_flight.pop()
    with pytest.raises(AssertionError, match="in order"):
        driver.scheduler.commit(plan, result, 0.0)


def test_times_of_the_first_schedule() -> None:
    driver = Driver(replace(SMALL, max_num_batched_tokens=4))
    driver.add(request("a", range(2, 12), 2), request("b", range(20, 30), 2, arrival=1.0))
    records = driver.run()
    assert records["a"].first_scheduled == 1.0
    assert records["b"].first_scheduled == 3.0


def test_a_stop_token_that_comes_too_early_does_not_end_a_sequence() -> None:
    """The sampler must exclude it; a sampler that has no other token, or is wrong, still ends no request."""
    core = Scheduler(SMALL)
    core.add(request("a", [9, 8], 6, min_tokens=2, stop_token_ids=(7,)))
    reasons = []
    while (plan := core.schedule(0.0)) is not None:
        reasons += [delta.finish_reason for delta in core.commit(plan, StepResult(np.array([7], np.int32)), 0.0)]
    assert reasons == [None, None, "stop"]


def test_blocks_are_taken_in_the_order_in_which_they_are_likeliest_to_be_in_a_cache() -> None:
    pool = BlockPool(6, 4)
    taken = [pool.allocate() for _ in range(4)]
    assert taken == [1, 2, 3, 4]
    pool.release([2])
    pool.release([3])
    assert [pool.allocate() for _ in range(3)] == [3, 2, 5]
