"""Drafters by name, several as one, and drafters of plugins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from naive_drafts import NAMESPACE

from headrace.errors import ConfigError, PluginError
from headrace.speculation.best_of import BestOf
from headrace.speculation.drafter import NO_GUESS, Guess, HostDrafter
from headrace.speculation.loading import BUILT_IN, find_drafter, make
from headrace.speculation.ngram import NgramDrafter


class Plugins:
    def __init__(self, **offered: object) -> None:
        self.offered = offered

    def find(self, hook: str, key: str) -> object | None:
        assert hook == "headrace_drafters"
        return self.offered.get(key)

    def drafters(self) -> dict[str, str]:
        return dict.fromkeys(self.offered, "a:b")


class Fixed:
    """Guesses the same tokens always."""

    def __init__(self, name: str = "mill", survival: float = 0.5) -> None:
        self.name, self.survival = name, survival
        self.calls: list[str] = []

    def begin(self, sequence: str, namespace: tuple[str, str], prompt: Sequence[int], predicted: Any = ()) -> None:
        self.calls.append("begin")

    def extend(self, sequence: str, tokens: Sequence[int]) -> None:
        self.calls.append("extend")

    def guess(self, sequence: str, most: int) -> Guess:
        return Guess([7], [self.survival], self.name) if self.survival else NO_GUESS

    def end(self, sequence: str, keep: bool) -> None:
        self.calls.append(f"end {keep}")


def broken() -> HostDrafter:
    raise OSError("no file")


@pytest.mark.parametrize("method", sorted(BUILT_IN))
def test_built_in_methods_follow_a_prediction(method: str) -> None:
    drafter = make(method)
    assert isinstance(drafter, HostDrafter)
    assert drafter.name == method
    drafter.begin("s", NAMESPACE, [1, 2, 3], [5, 6, 7])
    assert drafter.guess("s", 2)[::2] == ([5, 6], "predicted")
    drafter.end("s", keep=True)


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_without_a_prediction_the_text_itself_counts(method: str) -> None:
    drafter = make(method)
    drafter.begin("s", NAMESPACE, [1, 2, 3, 1])
    drafter.extend("s", [2])
    assert drafter.guess("s", 1)[::2] == ([3], method)


def test_drafters_of_plugins_are_found_by_name() -> None:
    plugins: Any = Plugins(mill=Fixed, wrong=5, broken=broken, half=object)
    assert find_drafter("mill", lambda: plugins) is Fixed
    assert make("mill", lambda: plugins).name == "mill"
    with pytest.raises(
        ConfigError,
        match="'other' is not installed; there are broken, dflash:CHECKPOINT, draft:MODEL,",
    ):
        make("other", lambda: plugins)
    for word, meant in (("ngrm", "ngram"), ("eagle", "eagle3"), ("mil", "mill")):
        with pytest.raises(ConfigError, match=f"; did you mean {meant}"):
            find_drafter(word, lambda: plugins)
    with pytest.raises(PluginError, match="'wrong' is 5: expected something to call"):
        make("wrong", lambda: plugins)
    with pytest.raises(PluginError, match="'broken' failed: OSError: no file"):
        make("broken", lambda: plugins)
    with pytest.raises(PluginError, match=r"'half' made <object.*lacks members of HostDrafter"):
        make("half", lambda: plugins)


def test_the_guess_with_most_expected_tokens_counts() -> None:
    parts = [Fixed("low", 0.2), Fixed("high", 0.6), Fixed("same", 0.6), Fixed("none", 0)]
    both = BestOf("both", parts)
    both.begin("s", NAMESPACE, [1])
    both.extend("s", [2])
    assert both.guess("s", 1).method == "high"
    both.end("s", keep=True)
    assert all(part.calls == ["begin", "extend", "end True"] for part in parts)
    assert BestOf("empty", [Fixed("none", 0), NgramDrafter()][:1]).guess("s", 1) == NO_GUESS
