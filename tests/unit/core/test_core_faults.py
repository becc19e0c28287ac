"""A fault of the core's own code ends the request that met it, and no other."""

from __future__ import annotations

import pytest
from core_driver import Driver, request

from headrace.core import scheduler as module
from headrace.core.constraints import Constraints
from headrace.types import StepResult, TokenLogprobs


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("asked", [{"logprobs": 0}, {"prompt_logprobs": 0}], ids=str)
def test_a_fault_while_a_result_is_taken_in(
    monkeypatch: pytest.MonkeyPatch, depth: int, asked: dict[str, object]
) -> None:
    alone = Driver(depth=depth)
    alone.add(request("b", [3, 4, 5], 6))
    expected = alone.run()["b"].tokens
    calls = [0]
    intact = module.token_logprobs

    def broken(result: StepResult, row: int, token: int, count: int) -> TokenLogprobs:
        calls[0] += 1
        if calls[0] == 3:
            raise ZeroDivisionError("planted")
        return intact(result, row, token, count)

    monkeypatch.setattr(module, "token_logprobs", broken)
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
