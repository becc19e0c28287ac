"""The user's configuration: a few frozen models.

`resolve` chooses values for options that the user left open, from the device's capabilities and the model's facts. It
is a pure function: the same inputs give the same result, and every choice has a reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationInfo, field_validator

from headrace.errors import ConfigError
from headrace.model_needs import check_needs
from headrace.types import Capabilities, KVLayout, LayerKV

__all__ = [
    "DRAFT",
    "SIZE",
    "Bytes",
    "CacheConfig",
    "Config",
    "DeviceConfig",
    "ModelConfig",
    "ModelFacts",
    "ParallelConfig",
    "Resolved",
    "SchedulerConfig",
    "ServerConfig",
    "parse_size",
    "resolve",
]

DRAFT = "draft"
"""The method of speculation whose drafts come from a model."""
EAGLE3, MTP = "eagle3", "mtp"
"""The methods whose drafts come from a head that reads the model's hidden states."""
WITH_CHECKPOINT = {
    DRAFT: ("draft:MODEL", "a model"),
    "dflash": ("dflash:CHECKPOINT", "a drafter"),
    "dspark": ("dspark:CHECKPOINT", "a drafter"),
    EAGLE3: ("eagle3:CHECKPOINT", "a draft head"),
}
"""Methods that load a checkpoint: how they are written, and what they need."""
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KVDtype = Literal["auto", "float32", "bfloat16", "float16", "int8", "float8_e4m3"]
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def parse_size(value: object) -> object:
    """The number of bytes that a text names: a number with an optional unit (k, M, G, or Ki, Mi, Gi; a B may follow).
    Values of other types are returned unchanged. Raises ValueError."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?i?)b?", value.strip().lower())
    if match is None or match[2] == "i":
        raise ValueError(f"{value!r} is no size: write it as 2GiB, 500M or 1000000")
    return int(float(match[1]) * _UNITS[match[2]])


SIZE = BeforeValidator(parse_size)
Bytes = Annotated[int, SIZE]
"""A number of bytes, or a text that `parse_size` reads."""


def unit(name: str) -> dict[str, JsonValue]:
    """The unit of a field's number, or the kind of its text, for help texts and the documentation."""
    return {"unit": name}


class Frozen(BaseModel):
    """Base class of all parts. A field's description is its help text and its row of docs/configuration.md."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans(cls, value: object, info: ValidationInfo) -> object:
        """Pydantic would take True for the number 1."""
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and bool not in (annotation, *get_args(annotation)):
            raise ValueError("this option takes a value, not True or False")
        return value


class ModelConfig(Frozen):
    """The model and its arithmetic."""

    model: str = Field(default="smollm2", description="A directory, a .gguf file, or a name of the catalogue.")
    dtype: Dtype = Field(
        default="auto",
        description="Arithmetic. auto: the fastest that the device has for the weights as stored. float32: exact "
        "arithmetic on dequantised weights.",
    )
    quantize: Literal["int8", "int4"] | None = Field(default=None, description="Quantise bf16 or fp16 weights on load.")
    max_model_len: int | None = Field(
        default=None,
        ge=1,
        description="Longest prompt and answer together. Default: the model's own limit, or what the KV cache holds.",
        json_schema_extra=unit("tokens"),
    )
    chat_template: str | None = Field(
        default=None,
        description="A file that replaces the checkpoint's own chat template.",
        json_schema_extra=unit("file"),
    )
    grammar_backend: str = Field(
        default="llguidance",
        description="What enforces constraints on the output: llguidance, xgrammar (an extra), or a plugin's name.",
        json_schema_extra=unit("name"),
    )
    packed_cache: Bytes = Field(
        default=20 << 30,
        ge=0,
        description="Bytes that packed weights may take in the cache directory, of all models together; 0 keeps none.",
    )


class CacheConfig(Frozen):
    """The paged KV cache."""

    block_size: int | None = Field(
        default=None,
        ge=1,
        description="Tokens per KV block. Default: what the device prefers.",
        json_schema_extra=unit("tokens"),
    )
    kv_dtype: KVDtype = Field(default="auto", description="How keys and values are stored. auto: follows dtype.")
    kv_memory: Bytes | None = Field(
        default=None,
        ge=1,
        description="Bytes of the KV cache. Default: a share of the free memory, by the device's kind.",
    )
    num_blocks: int | None = Field(default=None, ge=2, description="Number of KV blocks; overrides kv_memory.")
    prefix_caching: bool = Field(default=True, description="Reuse keys and values of prompts that begin alike.")


class SchedulerConfig(Frozen):
    """The sizes of a step and of the queue."""

    max_num_seqs: int = Field(default=64, ge=1, description="Sequences that run at once.")
    max_num_batched_tokens: int = Field(
        default=512,
        ge=1,
        description="Token budget of a step. Larger steps raise throughput, and the time between two tokens of the "
        "sequences that decode.",
        json_schema_extra=unit("tokens"),
    )
    max_waiting: int = Field(default=4096, ge=1, description="Requests that may wait; one more is refused with 503.")
    speculate: str | None = Field(
        default=None,
        description="Speculative decoding: ngram, suffix, draft:MODEL (a smaller model), eagle3:CHECKPOINT, "
        "dflash:CHECKPOINT, dspark:CHECKPOINT, mtp (the head in the model's own checkpoint), mtp:CHECKPOINT, or a "
        "plugin's method. Answers stay the same. Default: only requests with a prediction are speculated.",
        json_schema_extra=unit("method"),
    )

    @field_validator("speculate")
    @classmethod
    def _method(cls, text: str | None) -> str | None:
        method, colon, checkpoint = (text or "").partition(":")
        if method in WITH_CHECKPOINT and not checkpoint:
            form, what = WITH_CHECKPOINT[method]
            raise ValueError(f"the method {method} needs {what}: write it as {form}, with a name or a path")
        if colon and method not in WITH_CHECKPOINT and not (method == MTP and checkpoint):
            those = ", ".join([*WITH_CHECKPOINT, MTP])
            raise ValueError(f"the method {method} takes no checkpoint, as {those} do: leave out :{checkpoint}")
        return text

    @property
    def draft_model(self) -> str | None:
        """Name or path of the checkpoint that drafts; None without one."""
        return (self.speculate or "").partition(":")[2] or None

    def with_draft_model(self, find: Callable[[str], Path]) -> SchedulerConfig:
        """The same with the path of what drafts, which `find` gets from its name."""
        method, _, name = (self.speculate or "").partition(":")
        return self.model_copy(update={"speculate": f"{method}:{find(name)}"}) if name else self


class DeviceConfig(Frozen):
    """The device."""

    platform: str | None = Field(
        default=None,
        description="The platform to use. Default: the usable one with the highest score, see headrace doctor.",
        json_schema_extra=unit("name"),
    )
    index: int = Field(default=0, ge=0, description="Which of the platform's devices.")
    threads: int | None = Field(
        default=None,
        ge=1,
        description="Threads of a host platform. Default: one per physical core that this process may use.",
    )
    options: dict[str, int | str] = Field(
        default={},
        description="Options of the platform itself, as Platform.open takes them; unknown ones are an error.",
    )


class ParallelConfig(Frozen):
    """The number of devices that share one model."""

    tensor_parallel_size: int = Field(
        default=1,
        ge=1,
        description="Ranks that each hold a part of every layer: a device each, or a share of the cores on a host "
        "platform. threads is then the number of each.",
    )


class ServerConfig(Frozen):
    """The HTTP server."""

    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on; 0.0.0.0 is every one.",
        json_schema_extra=unit("address"),
    )
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    api_key: str | None = Field(
        default=None,
        description="Key that every client must send. HEADRACE_API_KEY does the same, unseen in the process list.",
        json_schema_extra=unit("key"),
    )
    served_model_name: str | None = Field(
        default=None, description="What clients call the model. Default: its own name.", json_schema_extra=unit("name")
    )
    cors_origin: str | None = Field(
        default=None,
        description="Origin of web pages that may read the answers, as https://chat.example; several are separated by "
        "commas, and * is every origin.",
        json_schema_extra=unit("origin"),
    )
    tool_format: str | None = Field(default=None, description="Format of tool calls, or none. Default: detected.")
    reasoning_format: str | None = Field(default=None, description="Format of reasoning, or none. Default: detected.")
    drain_timeout: float = Field(
        default=30.0, ge=0, description="Time for running requests after SIGTERM.", json_schema_extra=unit("seconds")
    )

    state_dir: str | None = Field(
        default=None,
        description="Folder for what clients ask to keep: responses (at most 10,000, 1 GiB and 30 days), files (at "
        "most 10,000 and 10 GiB) and batches. Default: nothing is kept.",
        json_schema_extra=unit("path"),
    )

    @field_validator("cors_origin")
    @classmethod
    def _origins(cls, text: str | None) -> str | None:
        for origin in [] if text is None else text.split(","):
            if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s,]+", origin.strip()):
                raise ValueError(
                    f"{origin.strip()!r} is no origin: write it as https://chat.example, without a path, or *"
                )
        return text


class Config(Frozen):
    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    device: DeviceConfig = DeviceConfig()
    parallel: ParallelConfig = ParallelConfig()
    server: ServerConfig = ServerConfig()


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts about a model that `resolve` needs."""

    layers: tuple[LayerKV, ...]
    max_position: int
    vocab_size: int
    weight_dtype: str
    """The dtype of the weights as stored: `float32`, `bfloat16`, `float16` or `quantized`."""
    attention: tuple[frozenset[str], ...] = ()
    """The features of attention that each layer needs, from `types.ATTENTION_FEATURES`. Head sizes are in `layers`."""
    operators: tuple[frozenset[str], ...] = ()
    """The optional operators that each layer needs."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The configuration with a value for every option."""

    dtype: str
    """`float32`: exact arithmetic. `bfloat16`, `float16`: that arithmetic. `quantized`: the format's own fast path."""
    kv_layout: KVLayout
    num_blocks: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool


def resolve(
    config: Config,
    capabilities: Capabilities,
    facts: ModelFacts,
    free_bytes: int,
    device: str = "this device",
    beside: KVLayout | None = None,
) -> tuple[Resolved, list[str]]:
    """Choose values for the options that the user left open. Returns the values and one line with the reason of each
    choice. `device`: its name, for errors. `beside`: the layout of another cache, a draft model's, that has as many
    blocks and shares the memory.

    Raises ConfigError if an explicit choice cannot be met; it is never replaced silently. Raises UnsupportedModel if a
    layer needs what the device lacks.
    """
    check_needs(facts.layers, facts.attention, facts.operators, capabilities, device)
    reasons: list[str] = []
    dtype = _dtype(config, capabilities, facts, reasons)
    layout = KVLayout(facts.layers, _block_size(config, capabilities), _kv_dtype(config, capabilities, dtype, reasons))
    max_len = config.model.max_model_len or facts.max_position
    if max_len > facts.max_position:
        raise ConfigError(
            f"max_model_len {max_len} exceeds the model's own {facts.max_position} positions: choose at most that"
        )
    blocks = config.cache.num_blocks or _num_blocks(
        config, capabilities, (layout, *([] if beside is None else [beside])), max_len, free_bytes, reasons
    )
    longest = (blocks - 1) * layout.block_size
    if longest < max_len and config.model.max_model_len is None:
        reasons.append(f"max_model_len {longest}: the KV cache of {blocks} blocks holds no more")
        max_len = longest
    budget = min(config.scheduler.max_num_batched_tokens, capabilities.max_tokens_per_step)
    return (
        Resolved(dtype, layout, blocks, max_len, config.scheduler.max_num_seqs, budget, config.cache.prefix_caching),
        reasons,
    )


def _dtype(config: Config, capabilities: Capabilities, facts: ModelFacts, reasons: list[str]) -> str:
    wanted = config.model.dtype
    if wanted != "auto":
        if wanted not in capabilities.dtypes:
            raise ConfigError(f"dtype {wanted}: this device computes in {', '.join(sorted(capabilities.dtypes))}")
        return wanted
    native = "quantized" if config.model.quantize else facts.weight_dtype
    if native in capabilities.dtypes:
        reasons.append(f"dtype {native}: the weights' own form, which the device computes in")
        return native
    reasons.append(f"dtype float32: the device has no native arithmetic for {native} weights")
    return "float32"


def _kv_dtype(config: Config, capabilities: Capabilities, dtype: str, reasons: list[str]) -> str:
    wanted = config.cache.kv_dtype
    if wanted != "auto":
        if wanted not in capabilities.kv_dtypes:
            raise ConfigError(f"kv_dtype {wanted}: this device stores {', '.join(sorted(capabilities.kv_dtypes))}")
        return wanted
    for choice in (dtype, "bfloat16", "float16"):
        if choice in capabilities.kv_dtypes:
            reasons.append(f"kv_dtype {choice}: follows dtype {dtype}")
            return choice
    return "float32"


def _block_size(config: Config, capabilities: Capabilities) -> int:
    size = config.cache.block_size
    if size is not None and size not in capabilities.block_sizes:
        raise ConfigError(f"block_size {size}: this device supports {', '.join(map(str, capabilities.block_sizes))}")
    return size or capabilities.block_sizes[0]


def _num_blocks(
    config: Config,
    capabilities: Capabilities,
    layouts: tuple[KVLayout, ...],
    max_len: int,
    free_bytes: int,
    reasons: list[str],
) -> int:
    """Enough blocks for every slot at full length, within the available memory. Each layout has so many."""
    useful = config.scheduler.max_num_seqs * -(-max_len // layouts[0].block_size) + 1
    share = 0.4 if capabilities.host_memory else 0.9
    budget = config.cache.kv_memory or int(free_bytes * share)
    size = sum(layout.padded(capabilities.kv_lanes).bytes_per_block for layout in layouts)
    blocks = min(useful, budget // size)
    if blocks < 2:
        raise ConfigError(
            f"the KV cache needs {2 * size} bytes for two blocks, but {budget} are available: "
            "raise kv_memory, or lower max_model_len or the KV dtype"
        )
    if config.cache.kv_memory is None:
        free = f"{share:.0%} of {free_bytes / 2**30:.1f} GiB free"
        reasons.append(f"{blocks} KV blocks: {free}, at most what all slots can use")
    if len(layouts) > 1:
        reasons.append(f"{blocks} KV blocks of the draft model, in the same memory")
    if size > sum(layout.bytes_per_block for layout in layouts):
        reasons.append(f"{size} bytes a KV block: rows are padded to {capabilities.kv_lanes} values")
    return blocks
