"""Checkpoints that compressed-tensors' own library wrote: logits as transformers computes them in float32."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from model_harness import is_view_of, logits_of, reference_ops
from safetensors import safe_open

from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.errors import CheckpointError, UnsupportedModel

DATA = Path(__file__).parent.parent / "data" / "checkpoints"
IDS = [5, 17, 80, 33, 2, 9, 64, 71, 12, 12, 90, 41]
VARIANTS = {
    "fp8-dynamic": ("fp8_e4m3", "fp8_token"),
    "fp8-static": ("fp8_e4m3", "fp8_tensor"),
    "fp8-tiles": ("fp8_e4m3", "fp8_group128"),
    "mxfp4": ("mxfp4", "mxfp4"),
    "nvfp4": ("nvfp4", "nvfp4"),
    "nvfp4a16": ("nvfp4", None),
    "w3a16": ("int4", None),
    "w4a16": ("int4", None),
    "w4a16-asymmetric": ("int4", None),
    "w4a16-channel": ("int4", None),
    "w4a8": ("int4", "int8_token"),
    "w8a16": ("int8", None),
    "w8a8-asymmetric": ("int8", "int8_token_asymmetric"),
    "w8a8-dynamic": ("int8", "int8_token"),
    "w8a8-static": ("int8", "int8_tensor"),
}


def expected(variant: str) -> torch.Tensor:
    with safe_open(DATA / "reference.safetensors", "pt") as file:
        return file.get_tensor(variant)


def test_every_stored_variant_is_tested() -> None:
    assert sorted(path.name for path in DATA.iterdir() if path.is_dir()) == sorted(VARIANTS)


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_logits_equal_those_of_transformers(variant: str) -> None:
    checkpoint = open_checkpoint(DATA / variant)
    decoder = checkpoint.build(reference_ops(), 32)
    scheme, activation = VARIANTS[variant]
    assert (decoder.weights.layers[0].down.scheme, decoder.weights.layers[0].down.activation) == (scheme, activation)
    assert checkpoint.facts().weight_dtype == "quantized"
    logits, reference = logits_of(decoder, IDS), expected(variant)
    assert torch.equal(logits.argmax(-1), reference.argmax(-1))
    if activation is None:
        torch.testing.assert_close(logits, reference, atol=1e-4, rtol=0)
        return
    # Quantized inputs turn a last bit into a whole step, now and then: few values may differ, and by little.
    error = (logits - reference).abs()
    assert error.median() < 1e-4 * reference.std()
    assert error.max() < 0.1 * reference.std()


@pytest.mark.parametrize("variant", ["w8a8-dynamic", "fp8-dynamic", "w4a16", "mxfp4"])
def test_codes_stay_views_of_the_file(variant: str) -> None:
    decoder = open_checkpoint(DATA / variant).build(reference_ops(), 32)
    assert is_view_of(decoder.weights.layers[0].down.tensors["codes"], DATA / variant / "model.safetensors")


def copy(variant: str, directory: Path, change: Any) -> Path:
    target = directory / variant
    shutil.copytree(DATA / variant, target)
    config = json.loads((target / "config.json").read_text())
    change(config["quantization_config"])
    (target / "config.json").write_text(json.dumps(config))
    return target


def group(config: dict[str, Any], part: str) -> dict[str, Any]:
    found: dict[str, Any] = config["config_groups"]["group_0"][part]
    return found


@pytest.mark.parametrize(
    ("variant", "change", "named"),
    [
        ("w8a8-dynamic", lambda c: c.update(kv_cache_scheme={"num_bits": 4}), "kv_cache_scheme"),
        ("w8a8-dynamic", lambda c: c.update(sparsity_config={"format": "sparse-24"}), "sparsity_config"),
        ("w8a8-dynamic", lambda c: c.update(transform_config={"config_groups": {"u": 1}}), "transform_config"),
        ("w8a8-dynamic", lambda c: c["config_groups"]["group_0"].update(format="marlin-24"), "marlin-24"),
        ("w8a8-dynamic", lambda c: c["config_groups"]["group_0"].update(output_activations={"num_bits": 8}), "output_"),
        ("w8a8-dynamic", lambda c: group(c, "input_activations").update(strategy="channel"), "8 bits per channel"),
        ("w8a8-dynamic", lambda c: group(c, "input_activations").update(num_bits=4), "int of 4 bits per token"),
        ("fp8-dynamic", lambda c: group(c, "weights").update(num_bits=6), "6 bits"),
        ("fp8-dynamic", lambda c: group(c, "weights").update(dynamic=True), "dynamic True"),
        ("fp8-dynamic", lambda c: group(c, "weights").update(strategy="attn_head"), "attn_head"),
    ],
)
def test_an_unsupported_feature_is_refused_by_name(variant: str, change: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        open_checkpoint(copy(variant, tmp_path, change))


@pytest.mark.parametrize("targets", [["re:.*_proj$"], ["re:.*self_attn.*", "re:.*mlp.*"]])
def test_targets_may_be_patterns(targets: list[str], tmp_path: Path) -> None:
    path = copy("w4a16", tmp_path, lambda c: c["config_groups"]["group_0"].update(targets=targets))
    logits = logits_of(open_checkpoint(path).build(reference_ops(), 32), IDS)
    torch.testing.assert_close(logits, expected("w4a16"), atol=1e-4, rtol=0)


def test_an_ignored_module_must_be_stored_plain(tmp_path: Path) -> None:
    path = copy("w4a16", tmp_path, lambda c: c["ignore"].append("re:.*down_proj"))
    with pytest.raises(CheckpointError, match=r"mlp\.down_proj\.weight"):
        open_checkpoint(path).build(reference_ops(), 32)


def test_a_scheme_that_the_file_does_not_follow_names_the_tensor(tmp_path: Path) -> None:
    path = copy("w4a16", tmp_path, lambda c: group(c, "weights").update(num_bits=8))
    with pytest.raises(CheckpointError, match=r"weight_packed"):
        open_checkpoint(path).build(reference_ops(), 32)
