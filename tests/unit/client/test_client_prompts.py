"""The shapes of prompts and parameters that `LLM` accepts, and the errors for others."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.client.prompts import params_per_prompt, read_prompts
from headrace.errors import InvalidRequest
from headrace.types import SamplingParams


def encode(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize(
    ("prompts", "texts", "ids"),
    [
        ("ab", ["ab"], [(97, 98)]),
        (["a", "b"], ["a", "b"], [(97,), (98,)]),
        ([1, 2], [None], [(1, 2)]),
        ((1, 2), [None], [(1, 2)]),
        (range(3), [None], [(0, 1, 2)]),
        ([[1], (2, 3)], [None, None], [(1,), (2, 3)]),
        (np.array([1, 2]), [None], [(1, 2)]),
        (np.array([[1, 2], [3, 4]]), [None, None], [(1, 2), (3, 4)]),
        ([np.int64(1), np.int64(2)], [None], [(1, 2)]),
        ([np.array([1], np.uint8), "a"], [None, "a"], [(1,), (97,)]),
        ({"prompt": "a"}, ["a"], [(97,)]),
        ([{"prompt": "a"}, {"prompt_token_ids": [5], "prompt": None}], ["a", None], [(97,), (5,)]),
        ([], [], []),
        pytest.param((text for text in "ab"), ["a", "b"], [(97,), (98,)], id="a generator"),
    ],
    ids=str,
)
def test_shapes(prompts: object, texts: list[object], ids: list[object]) -> None:
    assert read_prompts(prompts, encode) == (texts, ids)


@pytest.mark.parametrize(
    ("prompts", "match"),
    [
        (b"ab", "`prompt` is bytes"),
        ([b"ab", "c"], r"`prompts\[0\]` is bytes"),
        ([True, False], "`prompt` takes a list of token ids"),
        ([1, True], "`prompt` takes a list of token ids"),
        ([1.5], "`prompt` takes a list of token ids"),
        ([1, "a"], "`prompt` takes a list of token ids"),
        (["a", 1], r"`prompts\[1\]` takes a text, token ids"),
        (["a", [1, None]], r"`prompts\[1\]` takes a list of token ids"),
        ([np.array([0.5]), "a"], r"`prompts\[0\]` takes a list of token ids"),
        (5, "`prompts` takes a text, token ids"),
        (np.array(3), "`prompts` takes a text, token ids"),
        (["a", np.array(3)], r"`prompts\[1\]` takes a text, token ids"),
        (None, "`prompts` takes a text, token ids"),
        ({"text": "a"}, "has the key 'text'"),
        ({"prompt": "a", "multi_modal_data": {}}, "has the key 'multi_modal_data'"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "has both"),
        ({}, "has neither of"),
        ({"prompt": [1]}, "`prompt` takes a text"),
        ({"prompt_token_ids": "a"}, "`prompt_token_ids` takes token ids"),
        ({"prompt_token_ids": 5}, "takes"),
    ],
    ids=str,
)
def test_other_shapes_are_refused_with_a_message(prompts: object, match: str) -> None:
    with pytest.raises(InvalidRequest, match=match) as caught:
        read_prompts(prompts, encode)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ([], "2 prompts, but 0"),
        ([SamplingParams()], "2 prompts, but 1"),
        ({"max_tokens": 5}, "takes SamplingParams or a list of them, got dict"),
        ([SamplingParams(), None], r"`params\[1\]` takes SamplingParams, got NoneType"),
        ("greedy", "got str"),
    ],
    ids=str,
)
def test_parameters_of_other_shapes(params: object, match: str) -> None:
    with pytest.raises(InvalidRequest, match=match) as caught:
        params_per_prompt(params, 2)
    assert caught.value.param == "params"
