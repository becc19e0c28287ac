"""What becomes of the requests behind one, by its end."""

from __future__ import annotations

from typing import Any

from headrace.engine.chains import Chains
from headrace.errors import HeadraceError, InvalidRequest, Overloaded
from headrace.types import Constraint, Delta, Request, SamplingParams


class Admitted:
    """What chains have added."""

    def __init__(self, error: HeadraceError | None = None) -> None:
        self.error = error
        self.requests: list[Request] = []
        self.chains = Chains(self.admit, self.compiled)

    def admit(self, request: Request, matchers: Any) -> None:
        if self.error is not None:
            raise self.error
        self.requests.append(request)

    def compiled(self, constraint: Constraint) -> Any:
        raise InvalidRequest("this engine cannot constrain output")


def linked(**then: Any) -> Request:
    params = SamplingParams(max_tokens=4)
    return Request("a", (1, 2), params, (9,), then=Request("b", (5,), params, **then), then_after=(8,))


def test_the_end_decides_what_goes_on() -> None:
    ends: dict[str, tuple[Delta, tuple[int, ...] | None]] = {
        "length": (Delta("a", [3, 4], finish_reason="length"), (1, 2, 3, 4, 5)),
        "end": (Delta("a", [3, 9], finish_reason="stop", stop_token=9), (1, 2, 3, 5)),
        "stop": (Delta("a", [3, 8], finish_reason="stop", stop_token=8), (1, 2, 3, 5)),
        "within a token": (Delta("a", [3, 7], finish_reason="stop", stop_token=7), None),
        "grammar": (Delta("a", [3], finish_reason="stop"), (1, 2, 3, 5)),
        "error": (Delta("a", [3], finish_reason="error"), None),
        "abort": (Delta("a", [3], finish_reason="abort"), None),
    }
    for name, (delta, prompt) in ends.items():
        found = Admitted()
        found.chains.begin([linked()])
        found.chains.follow([Delta("other", [1]), delta])
        assert [one.prompt for one in found.requests] == ([] if prompt is None else [prompt]), name
        assert delta.went_on == (prompt is not None)
        assert all(one.extends == "a" for one in found.requests)
        assert not len(found.chains)


def test_a_request_that_cannot_be_added_is_left_to_the_client() -> None:
    for found, request in (
        (Admitted(Overloaded("full")), linked()),
        (Admitted(), linked(constraint=Constraint("regex", "a"))),
    ):
        found.chains.begin([request])
        delta = Delta("a", [3], finish_reason="length")
        found.chains.follow([delta])
        assert not delta.went_on
        assert not found.requests
        assert not len(found.chains)


def test_a_dropped_request_is_followed_by_nothing() -> None:
    found = Admitted()
    found.chains.begin([linked()])
    found.chains.drop(["x", "a"])
    found.chains.follow([Delta("a", [3], finish_reason="length")])
    assert not found.requests
