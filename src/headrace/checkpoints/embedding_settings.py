"""What a checkpoint declares about embeddings: files of sentence-transformers, a GGUF's pooling, a head of classes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.checkpoints.files import located, optional_json, present, read_text
from headrace.embedding_facts import EmbeddingFacts, Pooling
from headrace.errors import CheckpointError, UnsupportedModel, excerpt
from headrace.models.assemble import Source
from headrace.settings import Settings

__all__ = ["gguf_embedding", "hf_embedding"]

_MODULES = "modules.json"
_CLASSIFIER = "ForSequenceClassification"
_FLAGS: Mapping[str, Pooling] = {"pooling_mode_lasttoken": "last", "pooling_mode_mean_tokens": "mean"}
_MODES: Mapping[str, Pooling] = {"lasttoken": "last", "mean": "mean"}
_GGUF_POOLING: Mapping[int, Pooling | None] = {0: None, 1: "mean", 3: "last", 4: "last"}
_GGUF_RANK = 4
_GGUF_HEAD = "cls.output"


def hf_embedding(path: Path, config: Mapping[str, Any], source: Source, size: int, tied: bool) -> EmbeddingFacts:
    """The facts of a directory. Reads the classification head, if its architecture has one. Raises CheckpointError for
    a damaged file, UnsupportedModel for a module that is not supported."""
    facts = _sentence_transformers(path, EmbeddingFacts(size))
    with located(path / "config.json"):
        architecture = next(iter(Settings(config).texts("architectures")), "")
        labels = _labels(config) if architecture.endswith(_CLASSIFIER) else ()
    if labels:
        facts = _with_head(facts, source, "score", labels)
    return replace(facts, generates=tied or any(name.startswith("lm_head.") for name in source.names))


def gguf_embedding(metadata: Mapping[str, Any], source: Source, size: int) -> EmbeddingFacts:
    """The facts of a GGUF, as `hf_embedding`."""
    arch = Settings(metadata).text("general.architecture")
    kind = Settings(metadata, f"{arch}.").count("pooling_type", 0)
    if kind not in _GGUF_POOLING:
        raise UnsupportedModel(f"{arch}.pooling_type {kind} is not supported: the last token (3) and the mean (1) are")
    facts = EmbeddingFacts(size, _GGUF_POOLING[kind])
    if f"{_GGUF_HEAD}.weight" not in source.names:
        return facts
    if kind != _GGUF_RANK:
        raise UnsupportedModel(f"{_GGUF_HEAD}.weight is a ranking head, but {arch}.pooling_type is {kind}, not 4")
    labels = Settings(metadata).texts(f"{arch}.classifier.output_labels") or ["0"]
    return _with_head(facts, source, _GGUF_HEAD, tuple(labels))


def _with_head(facts: EmbeddingFacts, source: Source, name: str, labels: tuple[str, ...]) -> EmbeddingFacts:
    biased = f"{name}.bias" in source.names
    weight = source.matrix(name, len(labels), facts.size, bias=biased)
    bias = b"" if weight.bias is None else weight.bias.float().numpy().astype("<f4").tobytes()
    head = weight.dequantize()[: len(labels), : facts.size].float().contiguous().numpy().astype("<f4").tobytes()
    return replace(facts, labels=labels, head=head, head_bias=bias)


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the classes, as transformers reads them."""
    settings = Settings(config)
    named = settings.section("id2label")
    if named is None:
        return tuple(f"LABEL_{index}" for index in range(settings.count("num_labels", 2)))
    count = len(list(named.names()))
    return tuple(named.text(str(index)) for index in range(count))


def _sentence_transformers(path: Path, facts: EmbeddingFacts) -> EmbeddingFacts:
    """The facts of modules.json and of the files that it names."""
    file = path / _MODULES
    if not present(file):
        return facts
    pooling: Pooling | None = None
    normalize = False
    for module, folder in _modules(file):
        if module == "Pooling":
            pooling = _pooling(path / folder / "config.json")
        elif module == "Normalize":
            normalize = True
        elif module != "Transformer" or folder not in ("", "."):
            where = f" in {excerpt(folder)}" if module == "Transformer" else ""
            raise UnsupportedModel(
                f"{file}: module {excerpt(module)}{where} is not supported: Transformer in the directory itself, "
                "Pooling and Normalize are"
            )
    if pooling is None:
        raise UnsupportedModel(f"{file}: without a module Pooling there is no embedding of a text")
    return _with_prompts(
        path / "config_sentence_transformers.json", replace(facts, pooling=pooling, normalize=normalize)
    )


def _modules(file: Path) -> list[tuple[str, str]]:
    """(the class's name, the folder) of each module, in order."""
    text = read_text(file)
    with located(file):
        entries = Settings({"modules": _parsed(text)}).items("modules")
        found = []
        for entry in entries:
            settings = Settings({"module": entry}).section("module")
            if settings is None:
                raise CheckpointError(f"an entry is {excerpt(entry)}: expected an object")
            folder = settings.text("path", "")
            if ".." in Path(folder).parts or Path(folder).is_absolute():
                raise CheckpointError(f"field 'path' is {excerpt(folder)}: expected a folder of the checkpoint")
            found.append((settings.text("type").rsplit(".", 1)[-1], folder))
    return found


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"not valid JSON: {error}") from error


def _pooling(file: Path) -> Pooling:
    """The mode of a module Pooling: one flag of several, or in the newer form its name."""
    values = optional_json(file)
    with located(file):
        settings = Settings(values)
        if settings.get("include_prompt") is False:
            raise UnsupportedModel("include_prompt false is not supported: the prompt's tokens are pooled, too")
        mode = settings.optional_text("pooling_mode")
        chosen = (
            [mode]
            if mode is not None
            else [name for name in settings.names() if name.startswith("pooling_mode_") and settings.flag(name)]
        )
        known = _FLAGS if mode is None else _MODES
        if len(chosen) != 1 or chosen[0] not in known:
            raise UnsupportedModel(
                f"pooling by {excerpt(', '.join(chosen) or 'nothing')} is not supported: one of {', '.join(known)} is"
            )
        return known[chosen[0]]


def _with_prompts(file: Path, facts: EmbeddingFacts) -> EmbeddingFacts:
    values = optional_json(file)
    with located(file):
        settings = Settings(values)
        named = settings.section("prompts")
        prompts = {} if named is None else {name: named.text(name) for name in named.names()}
        default = settings.optional_text("default_prompt_name")
        if default is not None and default not in prompts:
            raise CheckpointError(f"field 'default_prompt_name' is {excerpt(default)}: 'prompts' has no such name")
    return replace(facts, prompts=prompts, default_prompt=default)
