"""A short benchmark of the real engine on a platform: figures of a device that is seldom at hand are kept in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.bench.dispatch import main

__all__ = ["REPORTS", "bench_offline", "random_model"]

REPORTS = Path(__file__).parents[3] / "build" / "device"
"""Where tests on a device leave their figures."""
_ENGINE_TESTS = Path(__file__).parents[2] / "engine"


def bench_offline(platform: str, dtype: str, model: Path, reports: Path = REPORTS) -> dict[str, Any]:
    """`headrace bench offline` of a few requests on the random model in the directory `model`, without a server. The
    report, which is also in `reports`, under the platform's name."""
    reports.mkdir(parents=True, exist_ok=True)
    out = reports / f"{platform}-{dtype}.json"
    load = ["--workload", "W1", "W2", "--requests", "4", "--concurrency", "4"]
    code = main(["offline", str(model), "--platform", platform, "--dtype", dtype, *load, "--json", str(out)])
    assert code == 0, f"{platform}: requests failed, see {out}"
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def random_model(directory: Path, monkeypatch: Any) -> Path:
    """A tiny random Llama of 16-bit weights with a byte tokenizer, by the engine's own tests."""
    monkeypatch.syspath_prepend(str(_ENGINE_TESTS))
    import tiny_models
    import torch
    from server_harness import VOCAB, make_model

    make_model(directory)
    sizes = {"vocab_size": VOCAB, "max_position_embeddings": 1024, "hidden_size": 128, "intermediate_size": 256}
    tiny_models.save("llama", directory, torch.bfloat16, **sizes)
    return directory
