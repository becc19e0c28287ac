"""Requests that are refused at once, with the numbers; a refusal changes no state."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_driver import SMALL, Driver, request

from headrace.core import CoreConfig, Scheduler
from headrace.errors import ConfigError, InvalidRequest, NeverFits, Overloaded
from headrace.types import Request

POOL = replace(SMALL, num_blocks=11, max_model_len=1000)


def refused(config: CoreConfig, one: Request, kind: type[InvalidRequest], param: str, *parts: str) -> None:
    scheduler = Scheduler(config)
    with pytest.raises(kind) as caught:
        scheduler.add(one)
    assert caught.value.param == param
    for part in parts:
        assert part in str(caught.value)
    assert not scheduler.has_work()
    scheduler.add(request(one.id, [3], 1))


@pytest.mark.parametrize(("prompt", "output"), [(127, 1), (128, 0), (1, 127), (126, 1)])
def test_exactly_the_context(prompt: int, output: int) -> None:
    driver = Driver(SMALL)
    driver.add(request("a", [i % 60 + 2 for i in range(prompt)], output))
    assert len(driver.run()["a"].tokens) == output


@pytest.mark.parametrize(("prompt", "output", "need"), [(44, 1, 11), (40, 2, 11), (41, 0, 11), (20, 400, 105)])
def test_larger_than_the_pool(prompt: int, output: int, need: int) -> None:
    param = "prompt" if prompt > 40 else "max_tokens"
    refused(POOL, request("a", [2] * prompt, output), NeverFits, param, f"need {need} KV blocks", "the pool has 10")


@pytest.mark.parametrize(("prompt", "output"), [(40, 1), (39, 2), (1, 40), (40, 0)])
def test_exactly_the_pool(prompt: int, output: int) -> None:
    driver = Driver(POOL)
    driver.add(request("a", [i % 60 + 2 for i in range(prompt)], output))
    assert len(driver.run()["a"].tokens) == output


@pytest.mark.parametrize(
    ("prompt", "changes"),
    [
        ([2, 3], {"stop_token_ids": (64,)}),
        ([2, 3], {"logit_bias": ((3, 1.0), (10**12, 1.0))}),
        ([2, 3], {"allowed_token_ids": (1, -5)}),
        ([2, 3], {"max_tokens": 127}),
        ([2, 3], {"max_tokens": None}),
        ([], {}),
        ([2, -1], {}),
        ([2, 2**70], {}),
    ],
)
def test_what_the_client_should_have_refused_has_no_effect(prompt: list[int], changes: dict[str, object]) -> None:
    scheduler = Scheduler(SMALL)
    one = request("a", prompt, 4)
    with pytest.raises(AssertionError):
        scheduler.add(replace(one, params=replace(one.params, **changes)))  # type: ignore[arg-type]
    assert not scheduler.has_work()


def test_an_id_in_use() -> None:
    driver = Driver()
    driver.add(request("a", [3], 4))
    with pytest.raises(AssertionError, match="one for each sequence"):
        driver.scheduler.add(request("a", [3], 4))
    driver.run()
    driver.records.clear()
    driver.add(request("a", [3], 4))
    driver.run()


def test_too_many_wait() -> None:
    driver = Driver(replace(SMALL, max_waiting=3))
    driver.add(*(request(f"r{i}", [3], 2) for i in range(3)))
    with pytest.raises(Overloaded, match="3 requests waiting already"):
        driver.scheduler.add(request("x", [3], 2))
    driver.step()
    driver.add(request("x", [3], 2))
    assert driver.run()["x"].reason == "length"


@pytest.mark.parametrize(
    "name", ["num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "vocab_size"]
)
def test_sizes_that_cannot_work(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} 0"):
        replace(SMALL, **{name: 0})
