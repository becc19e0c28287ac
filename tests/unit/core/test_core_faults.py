"""A fault of the core's own code ends the request that met it, and no other."""

from __future__ import annotations

import numpy as np
import pytest
from core_driver import Driver, request

from headrace.core import outcome
from headrace.core.constraints import Constraints
from headrace.types import NO_CHOICE, NOT_FINITE, StepPlan, StepResult, TokenLogprobs


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("asked", [{"logprobs": 0}, {"prompt_logprobs": 0}], ids=str)
def test_a_fault_while_a_result_is_taken_in(
    monkeypatch: pytest.MonkeyPatch, depth: int, asked: dict[str, object]
) -> None:
    alone = Driver(depth=depth)
    alone.add(request("b", [3, 4, 5], 6))
    expected = alone.run()["b"].tokens
    calls = [0]
    intact = outcome.token_logprobs

    def broken(result: StepResult, row: int, token: int, count: int, names: tuple[int, ...] = ()) -> TokenLogprobs:
        calls[0] += 1
        if calls[0] == 3:
            raise ZeroDivisionError("planted")
        return intact(result, row, token, count, names)

    monkeypatch.setattr(outcome, "token_logprobs", broken)
    driver = Driver(depth=depth)
    driver.add(request("a", [3, 4, 5, 6, 7, 8], 6, **asked), request("b", [3, 4, 5], 6))
    records = driver.run()
    assert records["a"].reason == "error"
    assert records["a"].error == "the engine failed on this request: ZeroDivisionError: planted"
    assert (records["b"].tokens, records["b"].reason) == (expected, "length")
    assert driver.scheduler.stats().blocks_held == 0


def test_a_fault_while_a_request_is_added_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    with monkeypatch.context() as patch:
        patch.setattr(Constraints, "of", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            driver.scheduler.add(request("a", [3], 4))
    assert not driver.scheduler.has_work()
    driver.add(request("a", [3], 4))
    assert driver.run()["a"].reason == "length"


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("after", [0, 1, 5])
@pytest.mark.parametrize(("code", "message"), [(NO_CHOICE, "no token is left"), (NOT_FINITE, "logits are not finite")])
def test_a_row_without_a_token_ends_its_request_alone(depth: int, after: int, code: int, message: str) -> None:
    others = [request(f"r{i}", [3, 4, 5, 6, 7, 8, 9, 10][: 3 + i], 12) for i in range(3)]
    alone = Driver(depth=depth)
    alone.add(*others)
    expected = {name: record.tokens for name, record in alone.run().items()}
    driver = Driver(depth=depth)
    intact = driver.device.launch

    def launch(plan: StepPlan) -> StepResult:
        result = intact(plan)
        mine = np.array([plan.request_ids[seq] == "a" for seq in plan.row_seq], np.bool_)
        result.tokens[mine & (plan.row_target == -1) & (plan.sampling.position >= 8 + after)] = code
        return result

    driver.device.launch = launch  # type: ignore[method-assign]
    driver.add(request("a", [3, 4, 5, 6, 7, 8, 9, 10], 12, logprobs=0), *others)
    records = driver.run()
    assert (records["a"].reason, len(records["a"].tokens)) == ("error", after)
    assert message in str(records["a"].error)
    assert {name: records[name].tokens for name in expected} == expected
    assert [len(tokens) for tokens in driver.scheduler.broken.values()] == [8 + after] * (code == NOT_FINITE)


def test_prompt_logprobs_of_broken_logits_end_the_request() -> None:
    driver = Driver()
    intact = driver.device.launch

    def launch(plan: StepPlan) -> StepResult:
        result = intact(plan)
        result.tokens[plan.row_target != -1] = NOT_FINITE
        return result

    driver.device.launch = launch  # type: ignore[method-assign]
    driver.add(request("a", [3, 4, 5, 6], 0, prompt_logprobs=1))
    assert driver.run()["a"].reason == "error"
