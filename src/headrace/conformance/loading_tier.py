"""Tier 9: checkpoints on disk, loaded and served by the engine's loader, loop and runner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.config import CacheConfig, Config, ModelConfig, SchedulerConfig
from headrace.conformance.checkpoints import KINDS, VOCAB, CheckpointKind, write
from headrace.conformance.fault_injection import FailingDevice
from headrace.conformance.operators_tier import need_operator
from headrace.conformance.tiers import tier
from headrace.conformance.tiny import Answer, agreeing
from headrace.conformance.transfer import head_size
from headrace.engine.core_loop import EngineCore
from headrace.engine.startup import build_on
from headrace.kernels.registry import OPTIONAL
from headrace.platforms.interface import Device, TorchTensors
from headrace.platforms.torch_device import TorchDevice
from headrace.types import ATTENTION_FEATURES, QUANT_FORMATS, Capabilities, Request, SamplingParams

__all__ = ["LoadingTier"]

_PLAIN = Capabilities(
    frozenset({"float32"}),
    frozenset({"float32"}),
    quant_formats=QUANT_FORMATS,
    attention_features=ATTENTION_FEATURES,
)
_MOE = next(spec for spec in OPTIONAL if spec.name == "moe")
_LEAST = 0.6
"""Share of all tokens that must agree, because one other token changes all tokens after it. Logprobs are compared as
far as the tokens agree."""


@tier("loading")
class LoadingTier:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_checkpoint_is_served(self, device: Device, kind: str, tmp_path: Path) -> None:
        """The answers are those of the references on torch's CPU device."""
        path, quantize = _prepare(device, KINDS[kind], tmp_path)
        found = _serve(_build(device, path, quantize), _requests())
        assert [len(tokens) for tokens, _ in found] == [6] * len(found)
        if device.capabilities().computes:
            _compare(found, _wanted(path, quantize), device.capabilities(), quantize)

    def test_biases_and_masks_of_any_number_reach_the_sampler(self, device: Device, tmp_path: Path) -> None:
        """Also more than a step was first compiled for, and fewer again afterwards."""
        path, _ = _prepare(device, KINDS["plain"], tmp_path)
        engine = _build(device, path, None)
        for count in (1, 9, 70, 1):
            allowed = tuple(range(3, 3 + count))
            # Biases leave only one of the allowed tokens likely.
            biases = tuple((token, -50.0) for token in allowed[1:])
            params = SamplingParams(
                max_tokens=3, temperature=0.0, allowed_token_ids=allowed, logit_bias=biases, ignore_eos=True
            )
            others = SamplingParams(max_tokens=3, temperature=0.0, logit_bias=((90, 100.0),), ignore_eos=True)
            work = [Request(f"m{count}", (1, 2, 3), params), Request(f"b{count}", (4, 5), others)]
            found = _serve(engine, work)
            if device.capabilities().computes:
                assert [tokens for tokens, _ in found] == [[3] * 3, [90] * 3], f"{count} biases and a mask"

    def test_a_failing_step_leaves_an_engine_that_serves(self, device: Device, tmp_path: Path) -> None:
        path, _ = _prepare(device, KINDS["plain"], tmp_path)
        wanted = _serve(_build(device, path, None), _requests())
        failing: Any = FailingDevice(device, RuntimeError("an injected failure of a kernel"))
        engine = _build(failing, path, None)
        errors: list[str] = []
        _serve(engine, _requests("first"), errors)
        assert errors, "no request got the error of the failed step"
        assert all("an injected failure of a kernel" in error for error in errors)
        for name in ("second", "third"):
            found = _serve(engine, _requests(name))
            if device.capabilities().computes:
                _compare(found, wanted, device.capabilities(), None)


def _prepare(device: Device, kind: CheckpointKind, folder: Path) -> tuple[Path, str | None]:
    """(the checkpoint, the format to quantize it to). Skips kinds that the device does not declare."""
    able = device.capabilities()
    if "sliding_window" in kind.settings and "sliding_window" not in able.attention_features:
        pytest.skip("attention feature sliding_window is not declared")
    on_torch = device.extension(TorchTensors) is not None
    if kind.experts:
        need_operator(device, _MOE)
    quantize = next((form for form in ("int8", "int4") if form in able.quant_formats or on_torch), None)
    if kind.quantize and quantize is None:
        pytest.skip("neither of the weight formats int8 and int4 is declared")
    heads = 4
    kv_heads = 2 if "gqa" in able.attention_features else heads
    path = write(kind, folder / "checkpoint", heads, kv_heads, head_size(able))
    return path, quantize if kind.quantize else None


def _build(device: Device, path: Path, quantize: str | None) -> EngineCore:
    able = device.capabilities()
    config = Config(
        model=ModelConfig.model_validate(
            {
                "model": str(path),
                "dtype": "float32" if "float32" in able.dtypes else "auto",
                "quantize": quantize,
                "packed_cache": 0,
            }
        ),
        cache=CacheConfig.model_validate(
            {"num_blocks": 64, "kv_dtype": "float32" if "float32" in able.kv_dtypes else "auto"}
        ),
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=48),
    )
    return build_on(device, "the tested", config, open_checkpoint(path), lambda stage, done: None).core


def _requests(name: str = "r") -> list[Request]:
    rng = np.random.default_rng(23)
    params = SamplingParams(max_tokens=6, temperature=0.0, logprobs=0, ignore_eos=True)
    return [Request(f"{name}{i}", tuple(rng.integers(0, VOCAB, 3 + 11 * i).tolist()), params) for i in range(4)]


def _serve(core: EngineCore, work: Sequence[Request], errors: list[str] | None = None) -> list[Answer]:
    answers: dict[str, Answer] = {request.id: ([], []) for request in work}
    core.add(work)
    while core.has_work():
        for delta in core.step():
            answers[delta.request_id][0].extend(delta.token_ids)
            answers[delta.request_id][1].extend(entry.logprob for entry in delta.logprobs or ())
            if delta.error is not None:
                assert errors is not None, delta.error
                errors.append(delta.error)
    return list(answers.values())


def _wanted(path: Path, quantize: str | None) -> list[Answer]:
    plain = TorchDevice(torch.device("cpu"), _PLAIN)
    try:
        return _serve(_build(plain, path, quantize), _requests())
    finally:
        plain.close()


def _compare(found: list[Answer], wanted: list[Answer], able: Capabilities, quantize: str | None) -> None:
    # Integer arithmetic and 16-bit arithmetic round the inputs.
    limit = 0.05 if "float32" in able.dtypes and quantize is None else 0.5
    same = sum(agreeing(one, other, limit) for one, other in zip(found, wanted, strict=True))
    total = sum(len(tokens) for tokens, _ in wanted)
    assert same >= _LEAST * total, f"{same} of {total} tokens are the references'"
