"""A checkpoint of either kind, opened: its facts at once, its weights when a decoder is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headrace.checkpoints.end_tokens import gguf_end_ids, hf_end_ids
from headrace.checkpoints.extensions import Extensions
from headrace.checkpoints.gguf_source import open_gguf
from headrace.checkpoints.safetensors_source import SafetensorsSource, open_safetensors, read_json
from headrace.config import ModelFacts
from headrace.errors import CheckpointError, ModelNotFound, UnsupportedModel
from headrace.kernels.ops import Ops
from headrace.models.assemble import Assembly, Finish, Source
from headrace.models.config import DecoderConfig
from headrace.models.decoder import Decoder
from headrace.models.family import Names
from headrace.models.registry import from_gguf, from_hf
from headrace.models.sharding import WHOLE, Group, Shard, local_config
from headrace.quant.methods import scheme_of
from headrace.quant.weights import place

__all__ = ["Checkpoint", "open_checkpoint"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Opened, checked as far as headers go, nothing read yet."""

    path: Path
    decoder_config: DecoderConfig
    eos_token_ids: tuple[int, ...]
    """Every id that ends a sequence by the settings, ascending; the tokenizer may know more."""
    metadata: Mapping[str, Any]
    """config.json, or the GGUF's metadata (arrays of numbers are numpy's)."""
    source: Source
    names: Names
    norm_offset: float
    interleaved: bool
    weight_dtype: str
    """`float32`, `bfloat16`, `float16` or `quantized`."""
    total_bytes: int
    """Of all weights as stored; what `progress` counts up to."""

    def facts(self, shard: Shard = WHOLE) -> ModelFacts:
        """Of one rank. Raises ConfigError for a number of ranks that the model cannot be split over."""
        config = local_config(self.decoder_config, shard)
        needs = config.attention_needs
        return ModelFacts(config.kv_layers, config.max_position, config.vocab, self.weight_dtype, needs)

    def build(
        self,
        ops: Ops,
        max_model_len: int,
        progress: Progress | None = None,
        move: Callable[[torch.Tensor], torch.Tensor] | None = None,
        shard: Shard = WHOLE,
        group: Group | None = None,
        finish: Finish | None = None,
    ) -> Decoder:
        """Read the weights and bind them to operators.

        `progress(done, total)` counts bytes; `move` puts a tensor where the operators want it (default: it stays a view of the
        file); `shard` is this rank's part and `group` its collectives. `finish(weight, operators)` gets every matrix with the
        operators that will be called with it, and gives what the model keeps (default: the matrix with its tensors moved).
        Raises CheckpointError naming file and tensor, UnsupportedModel for tensors the architecture doesn't know and for formats
        that cannot be cut, ConfigError for a number of ranks that does not suit the model.
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
            put,
            finish or (lambda weight, operators: place(weight, put)),
            count,
            shard,
        ).run()
        if progress is not None:
            progress(self.total_bytes, self.total_bytes)
        return Decoder(local_config(self.decoder_config, shard), ops, weights, max_model_len, group)


def open_checkpoint(path: Path | str, extensions: Extensions | None = None) -> Checkpoint:
    """A directory with a config.json, or a .gguf file. `extensions`: what is asked for whatever is not built in; default: every
    plugin that is installed.

    Raises PluginError where a plugin's part cannot be loaded, ModelNotFound where there is neither, UnsupportedModel for an architecture or feature that is not built,
    CheckpointError for a file that is not sound. Code in a checkpoint is never run.
    """
    path, extensions = Path(path), extensions or Extensions()
    if path.is_dir():
        return _open_directory(path, extensions)
    if path.suffix == ".gguf" and path.is_file():
        return _open_gguf(path, extensions)
    raise ModelNotFound(f"{path}: neither a directory with a config.json nor a .gguf file")


def _open_directory(path: Path, extensions: Extensions) -> Checkpoint:
    if not (path / "config.json").exists():
        raise ModelNotFound(f"{path}: the directory has no config.json")
    config = read_json(path / "config.json")
    family, decoder = _located(lambda c: from_hf(c, extensions.family), config, path / "config.json")
    source, total = _open_weights(path, config, extensions)
    dtype = "quantized" if config.get("quantization_config") else _float_dtype(source, family.hf_names, decoder)
    ends = _end_ids(path, config)
    return Checkpoint(path, decoder, ends, config, source, family.hf_names, family.norm_offset, False, dtype, total)


def _open_weights(path: Path, config: Mapping[str, Any], extensions: Extensions) -> tuple[Source, int]:
    """(tensors, bytes of their files)"""
    files = list(path.glob("*.safetensors*"))
    other = extensions.source(path) if not files else None
    if other is not None:
        return other
    source = open_safetensors(path, scheme_of(config, extensions.scheme))
    return source, sum(file.stat().st_size for file in files if file.suffix == ".safetensors")


def _float_dtype(source: Source, names: Names, config: DecoderConfig) -> str:
    """Of the first matrix of attention."""
    name = names.q.format(i=0)
    if isinstance(source, SafetensorsSource):
        return str(source.get(f"{name}.weight").dtype).removeprefix("torch.")
    scheme = source.matrix(name, config.num_q_heads * config.head_dim, config.hidden, bias=False).scheme
    return scheme if scheme in ("float32", "bfloat16", "float16") else "quantized"


def _end_ids(path: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    extra = path / "generation_config.json"
    more = [(extra, read_json(extra))] if extra.exists() else []
    return tuple(sorted(hf_end_ids([(path / "config.json", config), *more])))


def _open_gguf(path: Path, extensions: Extensions) -> Checkpoint:
    source = open_gguf(path)
    metadata, tensors = source.header.metadata, source.header.tensors
    if metadata.get("split.count", 1) > 1:
        raise UnsupportedModel(f"{path}: a GGUF in {metadata['split.count']} parts: join them with gguf-split --merge")
    family, decoder = _located(lambda m: from_gguf(m, extensions.family), metadata, path)
    names = family.gguf_names
    decoder = replace(
        decoder,
        tied=f"{names.head}.weight" not in tensors,
        qk_norm=decoder.qk_norm or f"{names.q_norm.format(i=0)}.weight" in tensors,
        qkv_bias=decoder.qkv_bias or f"{names.q.format(i=0)}.bias" in tensors,
        output_bias=f"{names.output.format(i=0)}.bias" in tensors,
        mlp_bias=f"{names.up.format(i=0)}.bias" in tensors,
    )
    entry = tensors.get(f"{names.q.format(i=0)}.weight")
    dtype = {0: "float32", 1: "float16", 30: "bfloat16"}.get(entry.type if entry else 0, "quantized")
    ends = tuple(sorted(gguf_end_ids(metadata)))
    total = sum(entry.size for entry in tensors.values())
    return Checkpoint(path, decoder, ends, metadata, source, names, 0.0, family.gguf_interleaved, dtype, total)


def _located(read: Callable[[Mapping[str, Any]], Any], values: Mapping[str, Any], path: Path) -> Any:
    """Run a reader of settings; its errors get the file's name."""
    try:
        return read(values)
    except CheckpointError as error:
        raise CheckpointError(str(error), str(path)) from error
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{path}: {error}") from error
