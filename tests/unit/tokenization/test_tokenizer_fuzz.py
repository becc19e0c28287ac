"""Damaged tokenizers: each is read, or refused in one line; panics of the tokenizer library are refused too."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mutations import mutate
from tokenizer_vocabs import byte_level_tokenizer, gpt2_metadata, llama_metadata, save, sentencepiece_tokenizer
from tokenizers import Tokenizer, normalizers
from tokenizers.models import WordLevel

from headrace.errors import CheckpointError, HeadraceError, InvalidRequest
from headrace.tokenization.library import guarded
from headrace.tokenization.tokenizer import load_tokenizer, tokenizer_from_gguf

CONFIG: dict[str, Any] = {
    "add_bos_token": True,
    "add_eos_token": False,
    "bos_token": "<s>",
    "eos_token": {"content": "<end>", "special": True},
    "added_tokens_decoder": {"2": {"content": "<tool>", "special": True}, "0": {"content": "<s>", "special": True}},
    "chat_template": [{"name": "default", "template": "{{ messages[0].content }}"}, {"name": "rag", "template": "x"}],
}
ENDS: dict[str, Any] = {"eos_token_id": [1, 2]}


def refused(read: Any) -> bool:
    """Whether the tokenizer was refused, in one line. One that loads must work, or refuse a text in one line."""
    try:
        tokenizer = read()
        tokenizer.decode(tokenizer.encode("hello <tool> world é"))
    except HeadraceError as error:
        message = str(error)
    else:
        return False
    assert "\n" not in message
    assert len(message) <= 1000
    return True


@pytest.mark.parametrize("name", ["tokenizer_config", "special_tokens_map", "generation_config", "config"])
def test_settings_beside_a_tokenizer(name: str, tmp_path: Path) -> None:
    save(byte_level_tokenizer(), tmp_path)
    document = {"tokenizer_config": CONFIG, "special_tokens_map": CONFIG}.get(name, ENDS)
    rng, outcomes = random.Random(name), []
    for _ in range(60):
        (tmp_path / f"{name}.json").write_text(json.dumps(mutate(rng, document)))
        outcomes.append(refused(lambda: load_tokenizer(tmp_path)))
    assert {True, False} == set(outcomes)


@pytest.mark.parametrize("make", [byte_level_tokenizer, sentencepiece_tokenizer])
def test_a_tokenizer_json(make: Any, tmp_path: Path) -> None:
    document = json.loads(make().to_str())
    vocab, merges = document["model"].pop("vocab"), document["model"].pop("merges")
    rng, outcomes = random.Random(make.__name__), []
    for _ in range(150):
        # The long parts are put back whole, so that a choice rarely falls on one of their entries.
        changed = mutate(rng, document)
        if isinstance(changed.get("model"), dict):
            changed["model"] |= {"vocab": vocab, "merges": merges}
        (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
        outcomes.append(refused(lambda: load_tokenizer(tmp_path)))
    assert {True, False} == set(outcomes)


@pytest.mark.parametrize("make", [gpt2_metadata, llama_metadata])
def test_metadata(make: Any) -> None:
    rng, document = random.Random(make.__name__), make()
    outcomes = [refused(lambda: tokenizer_from_gguf(mutate(rng, document, arrays=True))) for _ in range(150)]
    assert {True, False} == set(outcomes)


def test_a_very_large_id_is_refused(tmp_path: Path) -> None:
    save(byte_level_tokenizer(), tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    document["model"]["vocab"]["far"] = 10**9
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: holds \d+ tokens, but the id 1000000000"):
        load_tokenizer(tmp_path)


def test_a_very_long_piece_is_refused() -> None:
    document = llama_metadata()
    document["tokenizer.ggml.tokens"][-1] = "a" * 1_000_000
    with pytest.raises(CheckpointError, match="has 1000000 characters: at most 512"):
        tokenizer_from_gguf(document)


def test_a_panic_is_an_error_of_one_line() -> None:
    class PanicException(BaseException):
        """A panic like the library's, which is not an Exception."""

    with pytest.raises(CheckpointError, match="it fails: index out of bounds: 3 of 2"), guarded("it fails"):
        raise PanicException("index out of bounds:\n3 of 2")
    with pytest.raises(KeyboardInterrupt), guarded("it fails"):
        raise KeyboardInterrupt


def test_a_text_that_cannot_be_encoded_is_an_invalid_request(tmp_path: Path) -> None:
    """A model of complete words without a token for unknown ones."""
    save(Tokenizer(WordLevel({"a": 0}, unk_token="<unk>")), tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    with pytest.raises(InvalidRequest, match="the text cannot be encoded"):
        tokenizer.encode("zebra")


def test_scores_that_are_texts() -> None:
    document = llama_metadata()
    document["tokenizer.ggml.scores"] = document["tokenizer.ggml.tokens"]
    with pytest.raises(CheckpointError, match=r"'tokenizer\.ggml\.scores' holds text"):
        tokenizer_from_gguf(document)
    document["tokenizer.ggml.scores"] = np.zeros(3)
    with pytest.raises(CheckpointError, match=r"'tokenizer\.ggml\.scores' is of length 3"):
        tokenizer_from_gguf(document)


def test_a_normalizer_that_writes_terabytes_is_not_run(tmp_path: Path) -> None:
    for replacements, sound in ((40, False), (400, False), (2000, False), (8, True)):
        backend = byte_level_tokenizer()
        backend.normalizer = normalizers.Sequence([normalizers.Replace("a", "aa")] * replacements)
        save(backend, tmp_path)
        if sound:
            assert len(load_tokenizer(tmp_path).encode("a")) == 2**replacements
            continue
        with pytest.raises(
            CheckpointError, match=r"tokenizer\.json: its normalizer may write \S+ characters per character"
        ):
            load_tokenizer(tmp_path)
