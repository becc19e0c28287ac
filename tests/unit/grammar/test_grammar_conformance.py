"""The suite for grammar backends holds for ours, and finds what is wrong with others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.conformance.grammar import END, STOP, VOCABULARY, GrammarSuite
from headrace.core.matcher import Matcher
from headrace.errors import ConfigError, PluginError
from headrace.grammar.backend import CompiledGrammar, GrammarVocabulary, MakeGrammarBackend
from headrace.grammar.llguidance_backend import LlguidanceBackend
from headrace.grammar.loading import find_backend
from headrace.types import Constraint


class TestLlguidance(GrammarSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def make_backend(cls) -> MakeGrammarBackend:
        return find_backend("llguidance")


class Free:
    """Allows everything at any time: what an unenforced constraint looks like."""

    accepting, stopped = True, False

    def __init__(self) -> None:
        self.mask = np.full(10, 2**32 - 1, np.uint32)

    def advance(self, token: int) -> str | None:
        self.stopped = token in (END, STOP)
        return None


class Unenforced:
    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        pass

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        return self

    def matcher(self) -> Matcher:
        return Free()


def test_the_suite_finds_a_backend_that_enforces_nothing() -> None:
    suite, backend = GrammarSuite(), Unenforced(VOCABULARY)
    with pytest.raises(AssertionError):
        suite.test_texts_are_allowed_exactly(backend, Constraint("json_object"), ["{}"], ["[]"])
    with pytest.raises(AssertionError, match="is invalid"):
        suite.test_what_cannot_be_enforced_is_refused(backend, {"not": {}}, "1")
    with pytest.raises(AssertionError, match="never allowed"):
        suite.test_a_random_walk_keeps_to_the_mask(backend, 0)
    with pytest.raises(AssertionError):
        suite.test_a_token_that_is_not_allowed_is_an_error(backend)


class Plugins:
    def __init__(self, **offered: object) -> None:
        self.offered = offered

    def find(self, hook: str, key: str) -> object | None:
        assert hook == "headrace_grammar_backends"
        return self.offered.get(key)

    def grammar_backends(self) -> dict[str, str]:
        return dict.fromkeys(self.offered, "a:b")


def test_a_backend_is_found_by_its_name() -> None:
    plugins: Any = Plugins(mill=Unenforced, wrong=5)
    assert find_backend("mill", lambda: plugins) is Unenforced
    assert isinstance(find_backend("llguidance")(VOCABULARY), LlguidanceBackend)
    with pytest.raises(ConfigError, match="'other' is not installed; there are llguidance, mill, wrong"):
        find_backend("other", lambda: plugins)
    with pytest.raises(PluginError, match="'wrong' is 5: expected something to call"):
        find_backend("wrong", lambda: plugins)
