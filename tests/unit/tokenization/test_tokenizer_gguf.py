"""Vocabularies from GGUF metadata."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenizer_vocabs import CONTROL, NORMAL, USER, byte_level_tokenizer, gpt2_metadata, llama_metadata

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.tokenization.pretokenizers import PRE_TOKENIZERS
from headrace.tokenization.tokenizer import Tokenizer, tokenizer_from_gguf

TEXTS = [
    "",
    " ",
    "hello",
    " world",
    "a  b\n\n c",
    "it's 1212",
    "héllo wörld",
    "😀",
    "<s>hello<end>",
    "<tool> x",
    "\x00\x7f",
]


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(i) for i in tokenizer.encode(text, add_special_tokens=False)]


class TestByteLevel:
    @pytest.mark.parametrize("text", TEXTS)
    def test_encodes_as_the_library_does_and_gives_the_text_back(self, text: str) -> None:
        ours = tokenizer_from_gguf(gpt2_metadata())
        theirs = byte_level_tokenizer()
        ids = ours.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False).ids
        assert ours.decode(ids, skip_special_tokens=False) == text
        assert b"".join(map(ours.token_bytes, ids)) == text.encode()

    def test_control_tokens_are_special_and_those_of_users_are_not(self) -> None:
        tokenizer = tokenizer_from_gguf(gpt2_metadata())
        assert tokenizer.special_ids == {0, 1}
        assert tokenizer.decode(tokenizer.encode("<s>hello<end><tool>")) == "hello<tool>"

    def test_the_pre_tokeniser_decides_how_digits_are_split(self) -> None:
        assert pieces(tokenizer_from_gguf(gpt2_metadata(pre="gpt-2")), "1212") == ["12", "12"]
        assert pieces(tokenizer_from_gguf(gpt2_metadata(pre="smollm")), "1212") == ["1", "2", "1", "2"]
        assert pieces(tokenizer_from_gguf(gpt2_metadata(pre="llama-bpe")), "1212") == ["12", "1", "2"]
        assert pieces(tokenizer_from_gguf(gpt2_metadata(pre="qwen2")), "1212") == ["1", "2", "1", "2"]

    def test_without_a_name_the_default_pre_tokeniser_is_used(self) -> None:
        assert tokenizer_from_gguf(gpt2_metadata(pre=None)).encode("hello") == [
            tokenizer_from_gguf(gpt2_metadata()).encode("hello")[0]
        ]

    @pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
    def test_every_known_pre_tokeniser_gives_every_text_back(self, name: str) -> None:
        tokenizer = tokenizer_from_gguf(gpt2_metadata(pre=name, add_bos_token=False))
        for text in TEXTS:
            assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text

    def test_an_unknown_pre_tokeniser_is_named(self) -> None:
        with pytest.raises(UnsupportedModel, match=r"'klingon'.*llama-bpe"):
            tokenizer_from_gguf(gpt2_metadata(pre="klingon"))

    def test_words_that_are_tokens_stay_tokens_if_merges_are_ignored(self) -> None:
        tokens = [*gpt2_metadata()["tokenizer.ggml.tokens"], "zap"]
        types = np.ones(len(tokens), dtype=np.int32)
        ids = {
            pre: tokenizer_from_gguf(
                gpt2_metadata(pre=pre, tokens=tokens, token_type=types, add_bos_token=False)
            ).encode("zap")
            for pre in ("llama-bpe", "qwen2")
        }
        assert ids["llama-bpe"] == [len(tokens) - 1]
        assert len(ids["qwen2"]) == 3


class TestSentencePiece:
    def test_joins_the_pieces_with_the_best_scores(self) -> None:
        tokenizer = tokenizer_from_gguf(llama_metadata(add_bos_token=False))
        assert pieces(tokenizer, "hello world") == [" ", "hello", " world"]
        scored = llama_metadata(add_bos_token=False)
        scored["tokenizer.ggml.scores"][scored["tokenizer.ggml.tokens"].index("ll")] = 1.0
        assert pieces(tokenizer_from_gguf(scored), "hello") == [" ", "he", "ll", "o"]

    def test_characters_without_a_piece_become_bytes(self) -> None:
        tokenizer = tokenizer_from_gguf(llama_metadata())
        ids = tokenizer.encode("😀", add_special_tokens=False)
        assert [tokenizer.token_bytes(i) for i in ids] == [b" ", b"\xf0", b"\x9f", b"\x98", b"\x80"]
        assert [tokenizer.token_text(i) for i in ids[1:]] == ["\ufffd"] * 4
        assert tokenizer.decode(ids) == "😀"

    @pytest.mark.parametrize("text", ["", "hello world", " hello", "  a  b ", "a\nb", "é日本", "ab\tc"])
    @pytest.mark.parametrize("prefix", [True, False, None])
    def test_round_trip(self, text: str, prefix: bool | None) -> None:
        tokenizer = tokenizer_from_gguf(llama_metadata(add_space_prefix=prefix))
        assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_the_space_prefix_can_be_off(self) -> None:
        assert pieces(tokenizer_from_gguf(llama_metadata(add_space_prefix=False)), "hello") == ["hello"]
        assert pieces(tokenizer_from_gguf(llama_metadata(add_space_prefix=False)), " hello") == [" ", "hello"]

    def test_tokens_of_users_come_before_any_merge(self) -> None:
        tokenizer = tokenizer_from_gguf(llama_metadata(add_space_prefix=False))
        assert tokenizer.encode("\n\n", add_special_tokens=False) == [3]
        assert pieces(tokenizer, "a\n\nb") == ["a", "\n\n", "b"]

    def test_the_space_prefix_follows_each_added_token_as_in_other_engines(self) -> None:
        assert pieces(tokenizer_from_gguf(llama_metadata()), "a\n\nb") == [" a", "\n\n", " ", "b"]

    def test_a_byte_token_of_the_wrong_form_is_an_error(self) -> None:
        metadata = llama_metadata()
        metadata["tokenizer.ggml.tokens"][10] = "<0xZZ>"
        with pytest.raises(CheckpointError, match=r"token 10 is '<0xZZ>'"):
            tokenizer_from_gguf(metadata)


def gpt2_with(kind: int, *texts: str) -> dict[str, Any]:
    """The metadata with more tokens of one type after the others."""
    metadata = gpt2_metadata()
    metadata["tokenizer.ggml.tokens"] += texts
    types = metadata["tokenizer.ggml.token_type"]
    metadata["tokenizer.ggml.token_type"] = np.append(types, np.full(len(texts), kind, dtype=types.dtype))
    return metadata


class TestSpecialTokens:
    def test_bos_is_added_by_default_for_llama_and_for_llama3_alone(self) -> None:
        assert tokenizer_from_gguf(llama_metadata()).encode("a")[0] == 1
        assert tokenizer_from_gguf(gpt2_metadata(pre="llama-bpe")).encode("a")[0] == 0
        assert tokenizer_from_gguf(gpt2_metadata(pre="qwen2")).encode("a")[0] != 0

    def test_the_file_says_what_is_added(self) -> None:
        assert tokenizer_from_gguf(llama_metadata(add_bos_token=False)).encode("") == []
        assert tokenizer_from_gguf(gpt2_metadata(add_bos_token=True, add_eos_token=True)).encode("") == [0, 1]
        assert tokenizer_from_gguf(llama_metadata()).encode("", add_special_tokens=False) == []

    def test_every_end_is_known(self) -> None:
        tokenizer = tokenizer_from_gguf(gpt2_metadata(eot_token_id=2, eom_token_id=0))
        assert tokenizer.eos_token_ids == (0, 1, 2)
        assert tokenizer.bos_token_id == 0
        assert tokenizer.vocab_size == 3 + 256 + 9

    def test_several_ends_are_known(self) -> None:
        ids = np.array([2, 1, 0xFFFFFFFF, 10**9], dtype=np.uint32)
        assert tokenizer_from_gguf(gpt2_metadata(eos_token_ids=ids)).eos_token_ids == (1, 2)

    @pytest.mark.parametrize("text", ["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>"])
    def test_a_control_token_that_ends_a_turn_is_an_end(self, text: str) -> None:
        size = gpt2_metadata()["tokenizer.ggml.token_type"].size
        assert tokenizer_from_gguf(gpt2_with(CONTROL, text)).eos_token_ids == (1, size)
        for other in (NORMAL, USER):
            assert tokenizer_from_gguf(gpt2_with(other, text)).eos_token_ids == (1,), "text is no end"

    def test_a_message_of_several_in_a_turn_does_not_end_it(self) -> None:
        tokenizer = tokenizer_from_gguf(gpt2_with(CONTROL, "<|end|>", "<|return|>", "<|call|>"))
        assert tokenizer.eos_token_ids == (1, tokenizer.vocab_size - 2, tokenizer.vocab_size - 1)

    def test_the_id_for_no_token_is_none(self) -> None:
        assert tokenizer_from_gguf(gpt2_metadata(bos_token_id=0xFFFFFFFF)).bos_token_id is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": None}, r"tokenizer\.ggml\.tokens' is missing"),
        ({"tokens": ["a", 3]}, "list of strings"),
        ({"merges": None}, r"merges' is missing"),
        ({"merges": ["no such"]}, "merges' does not fit"),
        ({"token_type": np.zeros(3)}, "of length 3: expected 268"),
        ({"bos_token_id": "x"}, "bos_token_id' is 'x'"),
        ({"pre": 7}, "pre' is 7: expected str"),
    ],
)
def test_wrong_metadata_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        tokenizer_from_gguf(gpt2_metadata(**changes))


def test_a_token_twice_is_named() -> None:
    metadata = gpt2_metadata()
    metadata["tokenizer.ggml.tokens"][5] = metadata["tokenizer.ggml.tokens"][4]
    with pytest.raises(CheckpointError, match="twice"):
        tokenizer_from_gguf(metadata)


def test_scores_must_be_there() -> None:
    with pytest.raises(CheckpointError, match="scores' is missing"):
        tokenizer_from_gguf(llama_metadata(scores=None))


@pytest.mark.parametrize("model", ["bert", "t5", None])
def test_other_models_are_refused_by_name(model: str | None) -> None:
    with pytest.raises(UnsupportedModel, match=str(model)):
        tokenizer_from_gguf(gpt2_metadata(model=model))
