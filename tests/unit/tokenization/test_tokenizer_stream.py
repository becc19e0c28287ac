"""Detokenisation: the streamed text equals the decoded text, and no character is split."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_vocabs import gpt2_metadata, llama_metadata

from headrace.errors import InvalidRequest
from headrace.tokenization.tokenizer import Tokenizer, tokenizer_from_gguf

BYTES = tokenizer_from_gguf(gpt2_metadata())
PIECES = tokenizer_from_gguf(llama_metadata())
BARE = tokenizer_from_gguf(llama_metadata(add_space_prefix=False))
KINDS = pytest.mark.parametrize("tokenizer", [BYTES, PIECES, BARE], ids=["bytes", "pieces", "bare"])


def streamed(tokenizer: Tokenizer, ids: list[int], skip: bool = True) -> list[str]:
    stream = tokenizer.stream(skip)
    return [*map(stream.push, ids), stream.flush()]


@KINDS
@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(st.integers(-2, 300), max_size=30), st.booleans())
def test_streamed_text_equals_decoded_text_for_any_ids(tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    assert "".join(streamed(tokenizer, ids, skip)) == tokenizer.decode(ids, skip)


@KINDS
@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_streamed_text_has_complete_characters(tokenizer: Tokenizer, text: str) -> None:
    if "▁" in text or "\ufffd" in text:
        return
    pieces = streamed(tokenizer, tokenizer.encode(text, add_special_tokens=False), skip=False)
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)


def test_a_character_comes_with_its_last_byte() -> None:
    ids = BYTES.encode("a😀b")
    assert streamed(BYTES, ids) == ["a", "", "", "", "😀", "b", ""]


def test_an_unfinished_character_is_flushed_once() -> None:
    stream = BYTES.stream()
    assert [stream.push(i) for i in BYTES.encode("😀")[:3]] == ["", "", ""]
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_an_invalid_character_is_shown_at_once() -> None:
    head, letter = BYTES.encode("😀")[0], BYTES.encode("a")[0]
    assert streamed(BYTES, [head, letter]) == ["", "\ufffda", ""]


def test_a_skipped_token_does_not_break_a_character() -> None:
    ids = BYTES.encode("é")
    halves = BYTES.encode("😀")
    assert BYTES.decode([*halves[:2], 1, *halves[2:], *ids]) == "😀é"
    assert "".join(streamed(BYTES, [*halves[:2], 1, *halves[2:]])) == "😀"
    assert BYTES.decode([*halves[:2], 1, *halves[2:]], skip_special_tokens=False) == "\ufffd<end>\ufffd\ufffd"


def test_ids_beyond_the_vocabulary_have_no_text() -> None:
    for token in (-1, 10**6):
        assert BYTES.token_bytes(token) == b""
        assert BYTES.token_text(token) == ""
        assert BYTES.decode([token]) == ""
        assert streamed(BYTES, [token]) == ["", ""]


def test_only_the_first_space_of_a_text_belongs_to_the_vocabulary() -> None:
    ids = PIECES.encode(" hello world", add_special_tokens=False)
    assert PIECES.decode(ids) == " hello world"
    assert "".join(streamed(PIECES, ids)) == " hello world"
    assert PIECES.decode(PIECES.encode("hello")[0:1] + PIECES.encode("hello")[1:]) == "hello"


def test_a_stream_that_continues_a_prompt_keeps_its_first_space() -> None:
    prompt, ids = PIECES.encode("hello"), PIECES.encode(" world", add_special_tokens=False)[-1:]
    assert PIECES.token_text(ids[0]) == " world"
    assert PIECES.stream(prompt_tail=prompt).push(ids[0]) == " world"
    assert PIECES.stream().push(ids[0]) == "world"
    # A prompt of nothing but BOS has no text to go on from.
    assert PIECES.stream(prompt_tail=[1]).push(ids[0]) == "world"
    assert PIECES.stream(skip_special_tokens=False, prompt_tail=[1]).push(ids[0]) == " world"


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES])
def test_the_plain_encoder_spells_control_tokens(tokenizer: Tokenizer) -> None:
    plain = tokenizer.plain_encoder()
    for special in tokenizer.special_ids:
        text = f"a{tokenizer.token_text(special)}b"
        assert tokenizer.special_ids.isdisjoint(plain(text))
        assert tokenizer.decode(plain(text), skip_special_tokens=False) == text
    assert plain("hello world") == tokenizer.encode("hello world", add_special_tokens=False)


def test_lone_surrogates_are_refused() -> None:
    message = r"the text cannot be encoded: '\\ud800' at 2 is half of a surrogate pair, which is no character"
    with pytest.raises(InvalidRequest, match=message):
        BYTES.encode("aé\ud800")
