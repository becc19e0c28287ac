"""The catalogue's tokenizers against transformers' reading of the same files."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from transformers import AutoTokenizer

from headrace.hub.catalogue import cached_path, find_cached, terms_of
from headrace.tokenization.chat_inputs import ChatInputs
from headrace.tokenization.tokenizer import Tokenizer, load_tokenizer

pytestmark = [pytest.mark.real_model, pytest.mark.slow]
TEXTS = [
    "",
    " ",
    "\n\n\n",
    "\t\t x",
    "Hello  world   x ",
    "héllo wörld ñ e\u0301 \u0915\u094d\u0937",
    "😀😀😀 👩‍👩‍👧‍👦 🏳️‍🌈",
    "日本語のテキスト 中文 한국어 مرحبا بالعالم",
    "def f(x):\n    return x ** 2  # comment\n\n\n\tif a:\n\t\tb()",
    "1234567 12 3.14159 1,000,000 don't can't I'LL we've",
    "a\r\nb\r\n",
    "<|im_start|>user\nhi<|im_end|>\n<start_of_turn>user\nhi<end_of_turn>\n<bos><eos>",
    "<table><tr><td>x</td></tr></table> <0x41> <unk> <pad>",
    "\u200b\u00a0x\u3000y\x00\x01\x7f",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ﷽ «quotes» “curly” — –",
    "x" * 300,
]
ALPHABET = [*map(chr, range(32, 127)), *"é中😀\u200d\u0301\u0915\t\n\r\xa0\u3042"]


def random_texts(count: int) -> list[str]:
    rng = np.random.default_rng(0)
    return ["".join(rng.choice(ALPHABET, size=rng.integers(1, 60))) for _ in range(count)]


def in_memory(path: Path | str, dtype: npt.DTypeLike = np.uint8, mode: str = "r") -> npt.NDArray[Any]:
    """For `numpy.memmap`, whose every slice is a costly object: the reader of GGUF makes hundreds of thousands."""
    assert mode == "r"
    return np.fromfile(path, dtype)


@lru_cache
def loaded(name: str) -> tuple[Tokenizer, Any]:
    """Ours and theirs, which takes its time."""
    if terms_of(name) is not None and find_cached(name) is None:
        pytest.skip(f"the terms of {name} have not been accepted here: run `headrace pull {name}`")
    path: Path = cached_path(name)
    with mock.patch("numpy.memmap", in_memory):
        theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    return load_tokenizer(path), theirs


@pytest.fixture(params=["smollm2", "gemma3-270m"])
def pair(request: pytest.FixtureRequest) -> tuple[Tokenizer, Any]:
    return loaded(request.param)


def test_encoding_and_decoding_match_the_reference(pair: tuple[Tokenizer, Any]) -> None:
    ours, theirs = pair
    for text in [*TEXTS, *random_texts(100)]:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        for skip in (True, False):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip), text
        stream = ours.stream()
        assert "".join(map(stream.push, ids)) + stream.flush() == ours.decode(ids)


def test_every_token_has_its_bytes(pair: tuple[Tokenizer, Any]) -> None:
    ours, theirs = pair
    assert ours.vocab_size == len(theirs)
    for token in range(0, ours.vocab_size, 997):
        text = theirs.decode([token])
        if "\ufffd" not in text and token not in ours.special_ids:
            assert ours.token_bytes(token) == text.encode()
            assert ours.token_text(token) == text


ENDS = {"smollm2": ("<|endoftext|>", "<|im_end|>"), "gemma3-270m": ("<eos>", "<end_of_turn>")}
"""All tokens that end a text or a turn, in the order of their ids; transformers reads one of them from the file."""


@pytest.mark.parametrize("name", ENDS)
def test_ends_and_beginnings(name: str) -> None:
    ours, theirs = loaded(name)
    assert ours.bos_token_id == theirs.bos_token_id
    assert tuple(map(ours.token_text, ours.eos_token_ids)) == ENDS[name]
    assert theirs.eos_token_id in ours.eos_token_ids
    assert ours.special_ids.issuperset(ours.eos_token_ids)


def test_the_default_model_splits_digits() -> None:
    """SmolLM2 was trained with every numeral as a token of its own, fractions and powers too; transformers' conversion
    does this for digits only."""
    tokenizer, _ = loaded("smollm2")
    for text in ("½ ²", "a٣b"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert all(
            not tokenizer.token_text(token).startswith(" ") or tokenizer.token_text(token) == " " for token in ids
        )


def test_the_default_models_chat_template_matches_the_reference() -> None:
    ours, theirs = loaded("smollm2")
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello "}]
    for generate in (True, False):
        expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate)
        assert ours.apply_chat_template(ChatInputs(messages, add_generation_prompt=generate)) == expected
    continued = ours.apply_chat_template(ChatInputs(messages, add_generation_prompt=False, continue_final_message=True))
    assert continued.endswith("<|im_start|>assistant\nHello ")
