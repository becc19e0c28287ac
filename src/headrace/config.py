"""The user's configuration: a few frozen models. `resolution.py` gives the options that the user left open a value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from headrace.config_fields import SIZE, Bytes, Frozen, parse_size, unit
from headrace.loading_config import LoadingConfig
from headrace.scale_config import ScaleConfig
from headrace.server_config import ServerConfig
from headrace.transfer_config import TransferConfig

__all__ = [
    "DRAFT",
    "SIZE",
    "Bytes",
    "CacheConfig",
    "Config",
    "DeviceConfig",
    "LoadingConfig",
    "ModelConfig",
    "ParallelConfig",
    "ScaleConfig",
    "SchedulerConfig",
    "ServerConfig",
    "TransferConfig",
    "parse_size",
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
    generation_config: Literal["auto", "none"] = Field(
        default="auto",
        description="Sampling of requests that state none. auto: what the checkpoint's generation_config.json (or a "
        "GGUF's general.sampling) recommends. none: OpenAI's defaults.",
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
    kv_share: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of the free memory that the KV cache may take if kv_memory is not given. Default: 0.4 on "
        "the host, 0.9 on a device with memory of its own.",
        json_schema_extra=unit("share"),
    )
    num_blocks: int | None = Field(default=None, ge=2, description="Number of KV blocks; overrides kv_memory.")
    prefix_caching: bool = Field(default=True, description="Reuse keys and values of prompts that begin alike.")
    kv_host_memory: Bytes | None = Field(
        default=None,
        ge=1,
        description="Bytes of host memory for KV blocks that leave the device. Default: none.",
    )
    kv_disk: str | None = Field(
        default=None,
        description="A folder for KV blocks and the bytes that it may take, as DIR:SIZE. It survives restarts, and "
        "engines of one machine share it. Default: none.",
        json_schema_extra=unit("DIR:SIZE"),
    )

    @field_validator("kv_disk")
    @classmethod
    def _folder_and_size(cls, text: str | None) -> str | None:
        if text is not None:
            folder, _, size = text.rpartition(":")
            if not folder or not parse_size(size):
                raise ValueError(f"{text!r} names no folder and size: write it as /var/cache/kv:100GiB")
        return text

    @property
    def disk(self) -> tuple[Path, int] | None:
        """The folder of `kv_disk` and its bytes."""
        if self.kv_disk is None:
            return None
        folder, _, size = self.kv_disk.rpartition(":")
        parsed = parse_size(size)
        assert isinstance(parsed, int)
        return Path(folder).expanduser(), parsed


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

    draft_quantization: Literal["auto", "none", "int8", "int4"] = Field(
        default="auto",
        description="Weights of what --speculate loads, which change no answer. auto: those of 16 and 32 bits become "
        "int8 if the model's own are quantised and the device computes with int8. none: as stored. int8, int4: "
        "quantised on load.",
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
    def draft_method(self) -> str:
        """The method of `speculate`, without its checkpoint; empty without one."""
        return (self.speculate or "").partition(":")[0]

    @property
    def draft_model(self) -> str | None:
        """Name or path of the checkpoint that drafts; None without one."""
        return (self.speculate or "").partition(":")[2] or None

    def with_draft_model(self, find: Callable[[str, bool], Path]) -> SchedulerConfig:
        """The same with the path of what drafts, which `find` gets from its name and from whether it is a model."""
        method, name = self.draft_method, self.draft_model
        return self.model_copy(update={"speculate": f"{method}:{find(name, method == DRAFT)}"}) if name else self


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
    """The number of devices that share one model: the product of both."""

    tensor_parallel_size: int = Field(
        default=1,
        ge=1,
        description="Ranks that each hold a part of every layer: a device each, or a share of the cores on a host "
        "platform. threads is then the number of each.",
    )
    pipeline_parallel_size: int = Field(
        default=1,
        ge=1,
        description="Stages that each hold a run of the layers, on tensor_parallel_size ranks, and compute a step at a "
        "time: so many steps are in flight. Answers keep their bits.",
    )
    expert_parallel: bool = Field(
        default=False,
        description="Of a model with experts, each rank of tensor_parallel_size holds complete experts instead of a "
        "part of every expert.",
    )

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


class Config(Frozen):
    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    device: DeviceConfig = DeviceConfig()
    parallel: ParallelConfig = ParallelConfig()
    transfer: TransferConfig = TransferConfig()
    server: ServerConfig = ServerConfig()
    loading: LoadingConfig = LoadingConfig()
    scale: ScaleConfig = ScaleConfig()

    def for_engine(self) -> str:
        """As JSON for another process of the engine: of the server's options only those that its log needs, so no
        key."""
        server = ServerConfig(log_format=self.server.log_format, served_model_name=self.server.served_model_name)
        return self.model_copy(update={"server": server}).model_dump_json()
