"""Embedding models and rerankers as they come: sentence-transformers' directories, heads of classes, GGUFs."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embedding_harness import reference
from gguf import GGMLQuantizationType
from gguf_export import export
from server_harness import VOCAB, make_model
from tiny_models import make, reference_logits, save
from tokenizers import AddedToken, Tokenizer
from transformers import AutoModelForSequenceClassification

from headrace import LLM, SamplingParams
from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.errors import CheckpointError, InvalidRequest, UnsupportedModel

POOLING = "sentence_transformers.models.Pooling"
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": POOLING},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]
TEXTS = ["a", "The river carries water to the mill.", "Another text, which is longer than the others are."]
OPTIONS: dict[str, Any] = {"num_blocks": 64, "threads": 1, "platform": "cpu"}


def write(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    make_model(path)
    return path


def with_tokenizer(path: Path, tokenizer: Path) -> Path:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / file, path / file)
    return path


def sentence_model(path: Path, tokenizer: Path, mode: str = "pooling_mode_mean_tokens", count: int = 3) -> Any:
    """A Qwen3 without head, as sentence-transformers saves it: names without the prefix `model.`."""
    path.mkdir()
    model = make("qwen3", vocab_size=VOCAB)
    model.model.config.architectures = ["Qwen3Model"]
    model.model.save_pretrained(path)
    write(path / "modules.json", MODULES[:count])
    write(
        path / "1_Pooling" / "config.json",
        {"word_embedding_dimension": 64, mode: True, "pooling_mode_cls_token": False},
    )
    prompts = {"prompts": {"query": "Find: ", "document": ""}, "default_prompt_name": None}
    write(path / "config_sentence_transformers.json", prompts)
    with_tokenizer(path, tokenizer)
    return model


@pytest.mark.parametrize("kind", ["mean", "last"])
def test_a_directory_of_sentence_transformers(tmp_path: Path, tokenizer: Path, kind: str) -> None:
    flag = {"mean": "pooling_mode_mean_tokens", "last": "pooling_mode_lasttoken"}[kind]
    model = sentence_model(tmp_path / "m", tokenizer, flag)
    with LLM(str(tmp_path / "m"), **OPTIONS) as llm:
        assert llm.info.embedding.pooling == kind
        found = llm.embed(TEXTS)
        wanted = [reference(model, llm.tokenizer.encode(text), kind) for text in TEXTS]
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other / np.linalg.norm(other), atol=2e-4)
            assert np.linalg.norm(one) == pytest.approx(1)
        asked = reference(model, llm.tokenizer.encode("Find: a"), kind)
        (query,) = llm.embed("a", prompt_name="query", normalize=False)
        np.testing.assert_allclose(query, asked, atol=2e-3)
        (short,) = llm.embed("a", dimensions=8)
        np.testing.assert_allclose(short, found[0][:8] / np.linalg.norm(found[0][:8]), atol=1e-6)
        a, b, c = (vector / np.linalg.norm(vector) for vector in (asked, *wanted[1:]))
        assert llm.score("a", TEXTS[1:]) == pytest.approx([float(a @ b), float(a @ c)], abs=1e-4)
        with pytest.raises(InvalidRequest, match="no output matrix"):
            llm.generate("a", SamplingParams(max_tokens=1))
        with pytest.raises(InvalidRequest, match="has document, query"):
            llm.embed("a", prompt_name="nothing")
        with pytest.raises(InvalidRequest, match="from 1 to 64"):
            llm.embed("a", dimensions=65)


def test_without_the_module_normalize(tmp_path: Path, tokenizer: Path) -> None:
    sentence_model(tmp_path / "m", tokenizer, count=2)
    facts = open_checkpoint(tmp_path / "m").embedding
    assert (facts.normalize, facts.pooling, facts.generates) == (False, "mean", False)


@pytest.mark.parametrize(
    ("file", "value", "message"),
    [
        ("modules.json", [*MODULES, {"path": "3", "type": "sentence_transformers.models.Dense"}], "module 'Dense'"),
        ("modules.json", MODULES[:1], "without a module Pooling"),
        ("modules.json", [{**MODULES[1], "path": "../x"}], "a folder of the checkpoint"),
        ("modules.json", {"a": 1}, "expected a list"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "pooling by 'pooling_mode_max_tokens'"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": True}, "pooling by"),
        ("1_Pooling/config.json", {"pooling_mode": "cls"}, "pooling by 'cls'"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True, "include_prompt": False}, "include_prompt"),
        ("config_sentence_transformers.json", {"default_prompt_name": "q"}, "no such name"),
    ],
    ids=str,
)
def test_declarations_that_are_refused(tmp_path: Path, tokenizer: Path, file: str, value: Any, message: str) -> None:
    sentence_model(tmp_path / "m", tokenizer)
    write(tmp_path / "m" / file, value)
    with pytest.raises((UnsupportedModel, CheckpointError), match=message):
        open_checkpoint(tmp_path / "m")


@pytest.mark.parametrize("labels", [1, 3])
def test_a_head_of_classes(tmp_path: Path, tokenizer: Path, labels: int) -> None:
    config = make("qwen2", vocab_size=VOCAB).config
    config.num_labels, config.pad_token_id = labels, 0
    torch.manual_seed(7)
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager").eval()
    model.score.weight.data.normal_()
    model.save_pretrained(tmp_path)
    with_tokenizer(tmp_path, tokenizer)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert len(llm.info.embedding.labels) == labels
        if labels > 1:
            with pytest.raises(InvalidRequest, match="classes LABEL_0, LABEL_1"):
                llm.score("a", "b")
            return
        found = llm.score("a", TEXTS)
        encode = llm.tokenizer.encode
        ids = [[*encode("a"), *encode(text, add_special_tokens=False)] for text in TEXTS]
    with torch.no_grad():
        wanted = [float(model(torch.tensor([one])).logits[0, 0].sigmoid()) for one in ids]
    assert found == pytest.approx(wanted, abs=1e-4)


def test_yes_or_no_by_the_next_token(tmp_path: Path) -> None:
    make_model(tmp_path)
    with LLM(str(tmp_path), **OPTIONS) as llm, pytest.raises(InvalidRequest, match="'yes' is 3 tokens"):
        llm.score("a", "b", method="yes_no")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in ("yes", "no")])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    documents = [*TEXTS[:2], "</s>"]
    model = save("llama", tmp_path, vocab_size=VOCAB + 2, max_position_embeddings=1024)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        found = llm.score("who?", documents, method="yes_no", instruction="Find.")
        assert llm.score("who?", TEXTS[0], method="yes_no", instruction="Find.") == found[:1]
        whole = list(map(partial(asked, llm, "Find.", "who?"), documents))
    rows = [reference_logits(model, ids)[-1] for ids in whole]
    assert found == pytest.approx([float((row[VOCAB] - row[VOCAB + 1]).sigmoid()) for row in rows], abs=1e-3)
    assert len(set(found)) == len(found)


def asked(llm: LLM, instruction: str, query: str, document: str) -> list[int]:
    """The prompt of Qwen3-Reranker's model card. What the document holds is text, special tokens too."""
    head = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    body = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: "
    tail = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    letters = [token for letter in document for token in llm.tokenizer.encode(letter, add_special_tokens=False)]
    first, last = (llm.tokenizer.encode(part, add_special_tokens=False) for part in (head + body, tail))
    return [*first, *letters, *last]


def test_gguf_pooling(tmp_path: Path) -> None:
    for kind, pooling in ((1, "mean"), (3, "last"), (0, None)):
        path = tmp_path / f"{kind}.gguf"
        export(make("qwen3"), path, GGMLQuantizationType.F32, {"pooling_type": kind})
        facts = open_checkpoint(path).embedding
        assert (facts.pooling, facts.normalize, facts.size) == (pooling, True, 64)
    export(make("qwen3"), tmp_path / "cls.gguf", GGMLQuantizationType.F32, {"pooling_type": 2})
    with pytest.raises(UnsupportedModel, match="pooling_type 2 is not supported"):
        open_checkpoint(tmp_path / "cls.gguf")
