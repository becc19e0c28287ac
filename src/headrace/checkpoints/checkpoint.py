"""An open checkpoint of either kind: its facts are read at once, its weights when a decoder is built."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headrace.checkpoints.embedding_settings import gguf_embedding, hf_embedding
from headrace.checkpoints.end_tokens import gguf_end_ids, hf_end_ids
from headrace.checkpoints.extensions import Extensions
from headrace.checkpoints.files import located, present, read_json
from headrace.checkpoints.gguf_source import open_gguf
from headrace.checkpoints.safetensors_source import open_safetensors
from headrace.checkpoints.sidecar import quantization_file, with_sidecar
from headrace.embedding_facts import NO_EMBEDDINGS, EmbeddingFacts
from headrace.errors import ModelNotFound, UnsupportedModel
from headrace.kernels.ops import Ops
from headrace.models.assemble import Assembly, Finish, Source
from headrace.models.config import DecoderConfig, check_decoder
from headrace.models.decoder import Decoder
from headrace.models.family import Names
from headrace.models.registry import from_gguf, from_hf
from headrace.models.sharding import ONE_STAGE, WHOLE, Collectives, Shard, StageLinks, local_config
from headrace.quant.methods import scheme_of
from headrace.quant.weights import place
from headrace.resolution import ModelFacts
from headrace.settings import Settings

__all__ = ["Checkpoint", "open_checkpoint"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An open checkpoint, whose headers are checked; no weight is read yet."""

    path: Path
    decoder_config: DecoderConfig
    eos_token_ids: tuple[int, ...]
    """All ids that end a sequence according to the settings, ascending; the tokenizer may add more."""
    metadata: Mapping[str, Any]
    """config.json, or the GGUF's metadata (arrays of numbers are numpy's)."""
    source: Source
    names: Names
    norm_offset: float
    interleaved: bool
    weight_dtype: str
    """`float32`, `bfloat16`, `float16` or `quantized`."""
    total_bytes: int
    """The stored bytes of all weights, the total of `progress`."""
    embedding: EmbeddingFacts = NO_EMBEDDINGS

    def facts(self, shard: Shard = WHOLE) -> ModelFacts:
        """The configuration of one rank. Raises ConfigError if the model cannot be split over the ranks."""
        config = local_config(self.decoder_config, shard)
        needs = config.attention_needs, config.operator_needs
        return ModelFacts(config.kv_layers, config.max_position, config.vocab, self.weight_dtype, *needs)

    def build(
        self,
        ops: Ops,
        max_model_len: int,
        progress: Progress | None = None,
        move: Callable[[torch.Tensor], torch.Tensor] | None = None,
        shard: Shard = WHOLE,
        group: Collectives | None = None,
        finish: Finish | None = None,
        place_vector: Callable[[torch.Tensor], Any] | None = None,
        links: StageLinks = ONE_STAGE,
    ) -> Decoder:
        """Read the weights and bind them to operators.

        `progress(done, total)` counts bytes. `move` puts a tensor into the memory that operators read (default: it
        stays a view of the file). `shard` is this rank's part, `group` its collective operations, `links` its
        neighbours among stages. `finish(weight, operators)` gets every matrix with the operators that will be called
        with it, and returns the form that the model stores (default: the matrix with its tensors moved). `place_vector`
        does the same as `move` for a norm, a router's bias or a rotary table (default: `move`).

        Raises CheckpointError that names file and tensor, UnsupportedModel for unknown tensors and for formats that
        cannot be split, ConfigError if the model cannot be split over the ranks.
        """
        done = 0

        def count(size: int) -> None:
            nonlocal done
            done = min(done + size, self.total_bytes)
            if progress is not None:
                progress(done, self.total_bytes)

        put = move or (lambda tensor: tensor)
        weights = Assembly(
            self.decoder_config,
            self.names,
            self.source,
            str(self.path),
            self.norm_offset,
            self.interleaved,
            place_vector or put,
            finish or (lambda weight, operators: place(weight, put)),
            count,
            shard,
        ).run()
        if progress is not None:
            progress(self.total_bytes, self.total_bytes)
        config = local_config(self.decoder_config, shard)
        return Decoder(config, ops, weights, max_model_len, group, place_vector, links)


def open_checkpoint(path: Path | str, extensions: Extensions | None = None) -> Checkpoint:
    """Open a directory with a config.json, or a .gguf file. Code in a checkpoint is never run.

    `extensions` resolve architectures and formats that are not built in; default: all installed plugins.

    Raises PluginError if a plugin cannot be loaded, ModelNotFound if there is no such file, UnsupportedModel for an
    unsupported architecture or feature, CheckpointError for an invalid file.
    """
    path, extensions = Path(path), extensions or Extensions()
    if os.path.isdir(path):
        return _open_directory(path, extensions)
    if path.suffix == ".gguf" and os.path.isfile(path):
        return _open_gguf(path, extensions)
    raise ModelNotFound(f"{path}: neither a directory with a config.json nor a .gguf file")


def _open_directory(path: Path, extensions: Extensions) -> Checkpoint:
    if not present(path / "config.json"):
        raise ModelNotFound(f"{path}: {_without_config(path)}")
    config = with_sidecar(path, read_json(path / "config.json"))
    with located(path / "config.json"):
        family, decoder = from_hf(config, extensions.family)
        check_decoder(decoder)
    source, total = _open_weights(path, config, extensions)
    dtype = "quantized" if config.get("quantization_config") else _float_dtype(source, family.hf_names, decoder)
    ends, names = _end_ids(path, config), family.hf_names
    facts = hf_embedding(path, config, source, decoder.hidden, decoder.tied)
    if not facts.generates:
        # The embedding stands in for the matrix that is not there, and its products are refused.
        decoder = replace(decoder, tied=True)
    return Checkpoint(path, decoder, ends, config, source, names, family.norm_offset, False, dtype, total, facts)


def _without_config(path: Path) -> str:
    """The reason why there is no config.json."""
    if not any(path.iterdir()):
        return "the directory is empty: expected a config.json"
    files = sorted(file.name for file in path.glob("*.gguf"))
    return f"the directory has no config.json{f': give the file {files[0]} itself' if files else ''}"


def _open_weights(path: Path, config: Mapping[str, Any], extensions: Extensions) -> tuple[Source, int]:
    """(the tensors, the bytes of their files)."""
    files = list(path.glob("*.safetensors*"))
    other = extensions.source(path) if not files else None
    if other is not None:
        return other
    with located(path / "config.json"):
        file = quantization_file(path, config)
    with located(file):
        scheme = scheme_of(config, extensions.scheme)
    source = open_safetensors(path, scheme)
    source.complete_names()
    return source, sum(os.path.getsize(file) for file in files if file.suffix == ".safetensors" and file.is_file())


def _float_dtype(source: Source, names: Names, config: DecoderConfig) -> str:
    """The type of the first attention matrix. Its shape is checked here, before memory is planned from the
    configuration."""
    rows = config.num_q_heads * config.head_dim
    scheme = source.matrix(names.q.format(i=0), rows, config.hidden, bias=False).scheme
    return scheme if scheme in ("float32", "bfloat16", "float16") else "quantized"


def _end_ids(path: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    extra = path / "generation_config.json"
    more = [(extra, read_json(extra))] if present(extra) else []
    return tuple(sorted(hf_end_ids([(path / "config.json", config), *more])))


def _open_gguf(path: Path, extensions: Extensions) -> Checkpoint:
    source = open_gguf(path)
    metadata, tensors = source.header.metadata, source.header.tensors
    with located(path):
        settings = Settings(metadata)
        if settings.count("split.count", 1) > 1:
            raise UnsupportedModel(f"a GGUF in {metadata['split.count']} parts: join them with gguf-split --merge")
        family, decoder = from_gguf(metadata, extensions.family)
        check_decoder(decoder)
        ends = tuple(sorted(gguf_end_ids(metadata)))
    names = family.gguf_names
    decoder = replace(
        decoder,
        tied=f"{names.head}.weight" not in tensors,
        qk_norm=decoder.qk_norm or f"{names.q_norm.format(i=0)}.weight" in tensors,
        qkv_bias=decoder.qkv_bias or f"{names.q.format(i=0)}.bias" in tensors,
        output_bias=f"{names.output.format(i=0)}.bias" in tensors,
        mlp_bias=f"{names.up.format(i=0)}.bias" in tensors,
    )
    source.expect(f"{names.q.format(i=0)}.weight", (decoder.num_q_heads * decoder.head_dim, decoder.hidden))
    dtype = {0: "float32", 1: "float16", 30: "bfloat16"}.get(tensors[f"{names.q.format(i=0)}.weight"].type, "quantized")
    total = sum(entry.size for entry in tensors.values())
    with located(path):
        facts = gguf_embedding(metadata, source, decoder.hidden)
    interleaved = family.gguf_interleaved
    return Checkpoint(path, decoder, ends, metadata, source, names, 0.0, interleaved, dtype, total, facts)
