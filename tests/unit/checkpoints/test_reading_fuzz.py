"""Ten thousand damaged settings of checkpoints: each is read, or refused in one line. Nothing else comes out of a
reader."""

from __future__ import annotations

import json
import math
import random
import resource
import struct
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from mutations import ARCHITECTURES, FAMILIES, SCHEMES, damage, gguf_metadata, hf_config, mutate
from safetensors.torch import save

from headrace.checkpoints.end_tokens import gguf_end_ids, hf_end_ids
from headrace.checkpoints.files import read_json
from headrace.checkpoints.gguf_header import parse_header
from headrace.checkpoints.safetensors_source import open_safetensors
from headrace.checkpoints.sidecar import with_sidecar
from headrace.errors import HeadraceError
from headrace.models.config import DecoderConfig, check_decoder
from headrace.models.registry import from_gguf, from_hf
from headrace.models.rope import cos_sin_table
from headrace.quant.methods import scheme_of

_MOST_BYTES = 64 << 20
"""That all of a test's reading may add to the peak of the process."""


@contextmanager
def bounded() -> Iterator[None]:
    """No allocation follows a number that a file states. Freed memory shows too: the peak of the process is looked
    at."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * (1 if sys.platform == "darwin" else 1024)
    assert grown < _MOST_BYTES


def outcome(read: Callable[[], object]) -> str | None:
    """The message of a HeadraceError, checked; None where what was read is sound. Anything else fails the test."""
    try:
        read()
    except HeadraceError as error:
        message = str(error)
        assert message
        assert "\n" not in message
        assert len(message) <= 1000
        return message
    return None


def usable(config: DecoderConfig) -> None:
    """What the engine does with a configuration before it looks at a weight."""
    check_decoder(config)
    for rope in config.ropes:
        assert bool(cos_sin_table(rope, 4).isfinite().all())
    assert config.kv_layers
    assert math.isfinite(config.scale)
    assert config.norm_eps > 0


def tally(outcomes: list[str | None]) -> None:
    """Both happen often, so that neither a reader that refuses all nor one that takes all goes unseen."""
    refused = sum(outcome is not None for outcome in outcomes)
    assert refused > len(outcomes) // 10
    assert refused < len(outcomes)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_configurations(architecture: str) -> None:
    rng, document = random.Random(architecture), hf_config(architecture)
    usable(from_hf(document)[1])

    def read(config: dict[str, Any]) -> None:
        hf_end_ids([(Path("config.json"), config)])
        usable(from_hf(config)[1])

    with bounded():
        changed = (mutate(rng, document) for _ in range(450))
        tally([outcome(lambda config=config: read(config)) for config in changed])  # type: ignore[misc]


@pytest.mark.parametrize("scheme", SCHEMES, ids=[scheme["quant_method"] for scheme in SCHEMES])
def test_quantisation(scheme: dict[str, Any], tmp_path: Path) -> None:
    rng, document = random.Random(str(scheme)), {"quantization_config": scheme}
    assert scheme_of(document) is not None
    with bounded():
        changed = (mutate(rng, document) for _ in range(300))
        tally([outcome(lambda config=config: scheme_of(with_sidecar(tmp_path, config))) for config in changed])  # type: ignore[misc]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_metadata(arch: str) -> None:
    rng, document = random.Random(arch), gguf_metadata(arch)
    usable(from_gguf(document)[1])

    def read(metadata: dict[str, Any]) -> None:
        gguf_end_ids(metadata)
        usable(from_gguf(metadata)[1])

    with bounded():
        changed = (mutate(rng, document, arrays=True) for _ in range(300))
        tally([outcome(lambda metadata=metadata: read(metadata)) for metadata in changed])  # type: ignore[misc]


def test_bytes_of_json(tmp_path: Path) -> None:
    rng, content = random.Random(1), json.dumps(hf_config("Qwen3MoeForCausalLM")).encode()
    file = tmp_path / "config.json"

    def read() -> None:
        usable(from_hf(read_json(file))[1])

    outcomes = []
    with bounded():
        for _ in range(300):
            file.write_bytes(damage(rng, content))
            outcomes.append(outcome(read))
    tally(outcomes)


def test_bytes_of_gguf_headers() -> None:
    rng, content = random.Random(2), sound_gguf()
    parse_header(memoryview(content), "file")
    tracemalloc.start()
    try:
        tally([outcome(lambda: parse_header(memoryview(damage(rng, content)), "file")) for _ in range(1200)])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_bytes_of_safetensors(tmp_path: Path) -> None:
    tensors = {"a.weight": torch.ones(4, 4), "b": torch.ones(3, dtype=torch.int8), "c": torch.ones(2, 2).bfloat16()}
    rng, content = random.Random(3), save(tensors)
    header = 8 + int.from_bytes(content[:8], "little")
    file = tmp_path / "model.safetensors"

    def read() -> None:
        source = open_safetensors(tmp_path, None)
        for name in source.names:
            source.get(name)
        source.matrix("a", 4, 4, bias=False)

    outcomes = []
    with bounded():
        for _ in range(400):
            file.write_bytes(one_of(rng, content, header))
            outcomes.append(outcome(read))
    tally(outcomes)


def one_of(rng: random.Random, content: bytes, header: int) -> bytes:
    """The header damaged, its stated length set right in half of all cases; or the data longer or shorter."""
    kind = rng.randrange(4)
    if kind == 0:
        return content[: rng.randrange(len(content))]
    if kind == 1:
        return content[: len(content) - 8] + bytes([rng.randrange(256)]) * 8
    inside = damage(rng, content[8:header])
    return (content[:8] if kind == 2 else len(inside).to_bytes(8, "little")) + inside + content[header:]


def test_indices_of_shards(tmp_path: Path) -> None:
    (tmp_path / "model-1.safetensors").write_bytes(save({"a.weight": torch.ones(2, 2), "b.weight": torch.ones(2)}))
    placed = {"a.weight": "model-1.safetensors", "b.weight": "model-1.safetensors"}
    rng, document = random.Random(4), {"metadata": {"total_size": 24}, "weight_map": placed}
    index = tmp_path / "model.safetensors.index.json"
    outcomes = []
    for _ in range(150):
        index.write_text(json.dumps(mutate(rng, document)))
        outcomes.append(outcome(lambda: open_safetensors(tmp_path, None).get("a.weight")))
    tally(outcomes)


def sound_gguf() -> bytes:
    """Of every type of value, with two tensors."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def pair(key: str, kind: int, payload: bytes) -> bytes:
        return text(key) + struct.pack("<I", kind) + payload

    words = struct.pack("<IQ", 8, 3) + b"".join(map(text, ["a", "é", ""]))
    pairs = [
        pair("words", 9, words),
        pair("numbers", 9, struct.pack("<IQ3f", 6, 3, 1.0, 2.0, 3.0)),
        pair("on", 7, b"\1"),
        pair("n", 11, struct.pack("<q", -5)),
        pair("general.alignment", 4, struct.pack("<I", 32)),
        pair("name", 8, text("x" * 40)),
    ]
    tensors = [
        text("a") + struct.pack("<I2QIQ", 2, 8, 4, 0, 0),
        text("b") + struct.pack("<I2QIQ", 2, 32, 2, 8, 128),
    ]
    body = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs)) + b"".join(pairs) + b"".join(tensors)
    return body + b"\0" * (-len(body) % 32) + b"\0" * 256
