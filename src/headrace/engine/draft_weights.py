"""The precision of a drafter's weights: `--draft-quantization`."""

from __future__ import annotations

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.drafter_weights import DraftWeights
from headrace.config import Config
from headrace.errors import ConfigError
from headrace.speculation.loading import find_drafter
from headrace.types import Capabilities

__all__ = ["check_host_drafter", "draft_weights"]


def draft_weights(config: Config, target: Checkpoint, capabilities: Capabilities) -> DraftWeights:
    """What `--draft-quantization` means for this target and device.

    `auto` is int8 if the target's own weights are quantised and computed so: a drafter of wider ones reads more for
    each of its values than the target does, and on a device with operators for int8 its time is that of reading them.
    """
    wanted = config.scheduler.draft_quantization
    if wanted != "auto":
        return DraftWeights(None if wanted == "none" else wanted, chosen=True)
    quantised = config.model.quantize is not None or target.weight_dtype == "quantized"
    able = "quantized" in capabilities.dtypes and "int8" in capabilities.quant_formats
    return DraftWeights("int8" if quantised and able and config.model.dtype == "auto" else None)


def check_host_drafter(config: Config, name: str) -> None:
    """For a drafter without weights, which works on the host. Raises ConfigError if there is none of that name, or if
    weights are to be quantised."""
    find_drafter(name)
    wanted, method = config.scheduler.draft_quantization, config.scheduler.speculate
    if wanted in ("int8", "int4"):
        given = "is not given" if method is None else f"{method} loads no weights"
        raise ConfigError(
            f"--draft-quantization {wanted}: --speculate {given}: leave it out, or choose a drafter with a checkpoint"
        )
