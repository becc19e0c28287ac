"""The engine from the cache of packed weights: the same bits as from the checkpoint, which is not read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf_export import export
from moe_models import save_moe
from safetensors.torch import load_file, save_file
from shared_models import shared_model
from tiny_models import make, prompt, save

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.packed import cache
from headrace.config import CacheConfig, Config, DeviceConfig, ModelConfig
from headrace.engine import rank_loading
from headrace.engine.startup import build_engine
from headrace.errors import CheckpointError
from headrace.platforms.cpu import native
from headrace.types import Request, SamplingParams

pytestmark = pytest.mark.skipif(native.missing() is not None, reason=f"no packed weights: {native.missing()}")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that takes tiny models too."""
    monkeypatch.setattr(cache, "_WORTH", 0)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "home"))
    return tmp_path / "home" / "packed"


def config_of(path: Path, **model: Any) -> Config:
    return Config(
        model=ModelConfig(model=str(path), **model),
        cache=CacheConfig(num_blocks=30),
        device=DeviceConfig(platform="cpu", threads=1),
    )


def answer(path: Path, **model: Any) -> list[Any]:
    """Tokens and logprobs of a greedy answer, from a new engine."""
    engine = build_engine(config_of(path, **model), lambda stage, done: None)
    try:
        params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, logprobs=2)
        engine.core.add([Request("r", tuple(prompt(20)), params, (2,))])
        found: list[Any] = []
        while engine.core.has_work():
            found += [(delta.token_ids, delta.logprobs) for delta in engine.core.step()]
        return found
    finally:
        engine.close()


def refuse(*args: Any, **kwargs: Any) -> None:
    pytest.fail("the checkpoint's weights are read")


def check(path: Path, monkeypatch: pytest.MonkeyPatch, **model: Any) -> None:
    cold = answer(path, **model)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "build", refuse)
        patch.setattr(rank_loading, "Packing", refuse)
        assert answer(path, **model) == cold
    assert cold


@pytest.mark.parametrize(
    ("variant", "dtype", "options"),
    [
        ("llama", torch.bfloat16, {}),
        ("llama-tied-bias", torch.float16, {}),
        ("llama", torch.float32, {"dtype": "float32"}),
        ("qwen3-bias-tied", torch.bfloat16, {"quantize": "int8"}),
        ("gemma3", torch.bfloat16, {"quantize": "int4"}),
    ],
    ids=str,
)
def test_directories(
    variant: str, dtype: torch.dtype, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = {"gemma3": {"hidden_size": 128}}.get(variant, {})
    save(variant, tmp_path / "model", dtype, **wide)
    check(tmp_path / "model", monkeypatch, **options)


@pytest.mark.parametrize("quantization", [Type.Q4_1, Type.Q8_0, Type.BF16], ids=str)
def test_gguf(quantization: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(make("llama"), tmp_path / "model.gguf", quantization)
    check(tmp_path / "model.gguf", monkeypatch)


@pytest.mark.parametrize("variant", ["mixtral", "qwen3_moe"])
def test_experts(variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_moe(variant, tmp_path / "model", torch.bfloat16)
    check(tmp_path / "model", monkeypatch)


def test_two_threads_pack_the_same_bytes(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(make("llama"), tmp_path / "model.gguf", Type.Q4_1)
    plain = answer(tmp_path / "model.gguf")
    (path,) = home.glob("*.packed")
    packed = path.read_bytes()
    path.unlink()
    monkeypatch.setattr(rank_loading, "_PACKING_THREADS", 1)
    assert answer(tmp_path / "model.gguf") == plain
    assert path.read_bytes() == packed


def test_a_change_of_the_weights_packs_them_again(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("llama", tmp_path / "model", torch.bfloat16)
    plain = answer(tmp_path / "model")
    assert answer(tmp_path / "model", dtype="float32") != plain
    assert answer(tmp_path / "model", quantize="int8") != plain
    save("llama", tmp_path / "model", torch.bfloat16, num_hidden_layers=2)
    assert answer(tmp_path / "model") != plain
    assert len(list(home.glob("*.packed"))) == 4


def test_a_damaged_file_is_written_again(tmp_path: Path, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    save("llama", tmp_path / "model", torch.bfloat16)
    plain = answer(tmp_path / "model")
    (path,) = home.glob("*.packed")
    sound = path.read_bytes()
    swapped = bytearray(sound)
    start = len(sound) // 2 // 4096 * 4096
    swapped[start : start + 8192] = sound[start + 4096 : start + 8192] + sound[start : start + 4096]
    for damaged in (sound[:-100], bytes(swapped)):
        path.write_bytes(damaged)
        caplog.clear()
        assert answer(tmp_path / "model") == plain
        assert [r.message.count("dropped") for r in caplog.records if "packed again" in r.message] == [1]
        assert path.read_bytes() == sound


def test_stored_values_are_released_once_they_are_packed(tmp_path: Path) -> None:
    save("llama-tied-bias", tmp_path / "model", torch.bfloat16)
    for quantize in (None, "int4"):
        engine = build_engine(config_of(tmp_path / "model", quantize=quantize), lambda stage, done: None)
        try:
            weights = engine.own.weights
            layers = [w for layer in weights.layers for w in (layer.qkv, layer.output, layer.gate_up, layer.down)]
            assert all(not w.tensors and not w.parts for w in [weights.head, weights.embedding, *layers])
        finally:
            engine.close()


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(value: float, quantize: str | None, tmp_path: Path) -> None:
    save("llama", tmp_path, torch.bfloat16)
    name = "model.layers.1.mlp.down_proj.weight"
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[name][3, 5] = value
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"{name}.*NaN or infinity"):
        answer(tmp_path, quantize=quantize)
    assert not list((tmp_path / "home").glob("packed/*.packed"))


@pytest.mark.parametrize(("name", "named"), [("nan_weight", "NaN"), ("nvfp4_zeroglobal", "global_scale is 0.0")])
def test_invalid_models_of_another_writer_are_refused(name: str, named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        answer(shared_model(name))


def test_none_is_kept_where_none_is_wanted(tmp_path: Path, home: Path) -> None:
    save("llama", tmp_path / "model", torch.bfloat16)
    answer(tmp_path / "model", packed_cache=0)
    assert not home.exists()
