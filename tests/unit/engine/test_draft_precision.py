"""What `--draft-quantization` makes of a drafter's weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.drafter_weights import DraftWeights
from headrace.config import Config, ModelConfig, SchedulerConfig
from headrace.engine.draft_weights import draft_weights
from headrace.errors import UnsupportedModel
from headrace.kernels.weight import Weight
from headrace.quant.online import FloatMatrix, quantize_weight
from headrace.quant.weights import dense, stack
from headrace.types import Capabilities

ABLE = Capabilities(frozenset({"float32", "quantized"}), frozenset({"float32"}), frozenset({"int8"}))
WIDE = Capabilities(frozenset({"float32"}), frozenset({"float32"}), frozenset({"int8"}))
NARROW = Capabilities(frozenset({"float32", "quantized"}), frozenset({"float32"}), frozenset({"gguf:q4_1"}))


def checkpoint(dtype: str) -> Checkpoint:
    return cast(Checkpoint, SimpleNamespace(weight_dtype=dtype))


def matrix(rows: int, columns: int = 64) -> Weight:
    return dense(torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)).bfloat16(), f"m{rows}")


@pytest.mark.parametrize(
    ("stored", "model", "device", "kind"),
    [
        ("quantized", {}, ABLE, "int8"),
        ("bfloat16", {"quantize": "int4"}, ABLE, "int8"),
        ("bfloat16", {}, ABLE, None),
        ("quantized", {"dtype": "float32"}, ABLE, None),
        ("quantized", {}, WIDE, None),
        ("quantized", {}, NARROW, None),
    ],
    ids=["quantized", "quantised on load", "bfloat16", "a chosen dtype", "no quantized arithmetic", "no int8"],
)
def test_auto_follows_the_target_and_the_device(
    stored: str, model: dict[str, Any], device: Capabilities, kind: str | None
) -> None:
    found = draft_weights(Config(model=ModelConfig(**model)), checkpoint(stored), device)
    assert (found.kind, found.chosen) == (kind, False)
    assert found.reasons == ([] if kind is None else ["draft_quantization int8: the model's own weights are quantised"])


@pytest.mark.parametrize(("wanted", "kind"), [("none", None), ("int8", "int8"), ("int4", "int4")])
def test_a_choice_counts_everywhere(wanted: Any, kind: str | None) -> None:
    config = Config(scheduler=SchedulerConfig(draft_quantization=wanted))
    for stored, device in (("quantized", ABLE), ("bfloat16", NARROW)):
        found = draft_weights(config, checkpoint(stored), device)
        assert (found.kind, found.reasons) == (kind, [])


def test_matrices_are_quantised_and_tables_stay() -> None:
    seen = list[tuple[str, ...]]()

    def finish(weight: Weight, operators: tuple[str, ...]) -> Weight:
        seen.append((weight.scheme, *(part.scheme for part in weight.parts), *operators))
        return weight

    precision = DraftWeights("int8")
    finished = precision.of_head(finish)
    finished(matrix(8), ("linear",))
    finished(stack([matrix(8), matrix(16)]), ("linear",))
    finished(matrix(32), ("logits", "embedding"))
    assert seen == [
        ("int8", "linear"),
        ("stack", "int8", "int8", "linear"),
        ("bfloat16", "logits", "embedding"),
    ]
    assert precision.loaded == 32 * (64 + 4) + 32 * 64 * 2


def test_what_is_quantised_already_stays_unless_it_was_chosen() -> None:
    four = quantize_weight(matrix(8), "int4")
    mixed = stack([four, matrix(16)])
    kept = DraftWeights("int8").of_head(lambda weight, operators: weight)
    assert kept(four, ("linear",)) is four
    assert kept(mixed, ("linear",)) is mixed
    chosen = DraftWeights("int8", chosen=True).of_head(lambda weight, operators: weight)
    with pytest.raises(UnsupportedModel, match=r"m8 is stored as int4: .*if it is a drafter's, --draft-quantization"):
        chosen(four, ("linear",))


def test_a_quantised_draft_model_stays() -> None:
    assert DraftWeights("int8").of_model(checkpoint("quantized")).kind is None
    assert DraftWeights(None, chosen=True).of_model(checkpoint("bfloat16")).kind is None


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_the_bytes_that_are_saved(kind: str) -> None:
    wide = matrix(24)
    saved = DraftWeights(kind).saved([FloatMatrix("m", 24, 64, 2)])
    assert saved == wide.nbytes - quantize_weight(wide, kind).nbytes > 0
    assert DraftWeights().saved([FloatMatrix("m", 24, 64, 2)]) == 0
