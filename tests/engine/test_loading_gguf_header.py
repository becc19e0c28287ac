"""Forged and damaged GGUF headers: one line that names the file and the field, at once and without memory."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.checkpoints.gguf_header import parse_header
from headrace.errors import CheckpointError, HeadraceError, ModelNotFound, UnsupportedModel

U32, STRING, ARRAY = 4, 8, 9


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key: str, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def tensor(name: str, dims: list[int], kind: int = 0, offset: int = 0, count: int | None = None) -> bytes:
    number = len(dims) if count is None else count
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", number, *dims, kind, offset)


def forge(pairs: list[bytes], tensors: list[bytes], data: int = 256, **counts: int) -> bytes:
    head = struct.pack(
        "<4sIQQ",
        b"GGUF",
        counts.get("version", 3),
        counts.get("claimed", len(tensors)),
        counts.get("claimed_pairs", len(pairs)),
    )
    body = head + b"".join(pairs) + b"".join(tensors)
    return body + b"\0" * (-len(body) % 32) + b"\0" * data


ALIGNMENT = "general.alignment"
FORGED: dict[str, tuple[bytes, str]] = {
    "a million dimensions": (forge([], [tensor("w", [4], count=10**6)]), "'w'.*1000000 dimensions"),
    "no dimension": (forge([], [tensor("w", [], count=0)]), "'w'.*0 dimensions"),
    "a dimension of 2^42": (forge([], [tensor("w", [1 << 42])]), "'w'.*needs 17592186044416 bytes"),
    "a product beyond 64 bits": (forge([], [tensor("w", [1 << 42, 1 << 42])]), "'w'.*shape"),
    "a dimension of zero": (forge([], [tensor("w", [0, 4])]), "'w'.*shape"),
    "alignment 0": (forge([pair(ALIGNMENT, U32, struct.pack("<I", 0))], []), "'general.alignment' is 0"),
    "alignment 3": (forge([pair(ALIGNMENT, U32, struct.pack("<I", 3))], []), "'general.alignment' is 3"),
    "alignment 2^31": (
        forge([pair(ALIGNMENT, U32, struct.pack("<I", 1 << 31))], []),
        "'general.alignment' is 2147483648",
    ),
    "alignment as a string": (forge([pair(ALIGNMENT, STRING, text("32"))], []), "'general.alignment' is '32'"),
    "a string of 2^60": (
        forge([pair("a", STRING, struct.pack("<Q", 1 << 60))], []),
        "metadata 'a'.*1152921504606846976 bytes",
    ),
    "a key of 2^60": (forge([struct.pack("<Q", 1 << 60) + b"a" * 20], []), "metadata key 0.*1152921504606846976"),
    "an array of 2^60": (forge([pair("a", ARRAY, struct.pack("<IQ", U32, 1 << 60))], []), "metadata 'a'"),
    "an array of 2^60 strings": (forge([pair("a", ARRAY, struct.pack("<IQ", STRING, 1 << 60))], []), "metadata 'a'"),
    "an array of arrays": (forge([pair("a", ARRAY, struct.pack("<IQ", ARRAY, 1))], []), "metadata 'a'.*type 9"),
    "an unknown value type": (forge([pair("a", 77, b"")], []), "metadata 'a'.*type 77"),
    "an offset past the end": (forge([], [tensor("w", [4], offset=1 << 40)]), "'w'.*offset"),
    "an offset that wraps": (forge([], [tensor("w", [4], offset=(1 << 64) - 32)]), "'w'.*offset"),
    "an odd offset": (forge([], [tensor("w", [4], offset=1)]), "'w'.*odd offset 1"),
    "2^60 tensors": (forge([], [], claimed=1 << 60), "tensor count 1152921504606846976"),
    "2^60 pairs": (forge([], [], claimed_pairs=1 << 60), "metadata count 1152921504606846976"),
    "an unknown tensor type": (forge([], [tensor("w", [32], kind=99)]), "'w'.*GGUF type 99"),
    "rows that are no whole blocks": (forge([], [tensor("w", [33], kind=8)]), "'w'.*33 values.*q8_0"),
    "a tensor twice": (forge([], [tensor("w", [4]), tensor("w", [4])]), "'w'.*twice"),
    "a key twice": (forge([pair("a", U32, b"\0" * 4)] * 2, []), "'a' occurs twice"),
    "version 1": (forge([], [], version=1), "version"),
    "big-endian": (forge([], [], version=3 << 24), "version 0x3000000"),
    "another file": (b"PK\3\4" + b"\0" * 100, "not a GGUF file"),
    "four bytes": (b"GGUF", "version"),
    "an empty file": (b"", "empty"),
}


@pytest.mark.parametrize("case", sorted(FORGED))
def test_a_forged_header_is_one_line_with_file_and_field(case: str, tmp_path: Path) -> None:
    content, expected = FORGED[case]
    path = tmp_path / "forged.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=expected) as caught:
        open_checkpoint(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert peak < 4 << 20


def sound() -> bytes:
    words = struct.pack("<IQ", STRING, 3) + b"".join(map(text, ["a", "é", ""]))
    numbers = struct.pack("<IQ3f", 6, 3, 1.0, 2.0, 3.0)
    pairs = [
        pair("words", ARRAY, words),
        pair("numbers", ARRAY, numbers),
        pair("on", 7, b"\1"),
        pair("n", 11, struct.pack("<q", -5)),
    ]
    return forge(pairs, [tensor("a", [4, 8]), tensor("b", [32, 2], kind=8, offset=128)])


def test_a_valid_header_is_read_completely() -> None:
    content = sound()
    header = parse_header(memoryview(content), "file")
    metadata: dict[str, Any] = {**header.metadata, "words": list(header.metadata["words"])}
    metadata["numbers"] = header.metadata["numbers"].tolist()
    assert metadata == {"words": ["a", "é", ""], "numbers": [1.0, 2.0, 3.0], "on": True, "n": -5, ALIGNMENT: 32}
    assert (len(header.metadata["words"]), header.metadata["words"][1:]) == (3, ["é", ""])
    assert header.tensors["a"].shape == (8, 4)
    assert (header.tensors["b"].shape, header.tensors["b"].size) == ((2, 32), 68)
    assert header.tensors["b"].start - header.tensors["a"].start == 128


def test_every_truncation_is_an_error_that_names_the_file() -> None:
    content = sound()
    needed = parse_header(memoryview(content), "file").tensors["b"]
    for length in range(needed.start + needed.size):
        with pytest.raises(CheckpointError, match="file: "):
            parse_header(memoryview(content[:length]), "file")


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.integers(0, len(sound()) - 257), st.binary(min_size=1, max_size=8))
def test_damaged_bytes_never_raise_anything_else(at: int, noise: bytes) -> None:
    content = sound()
    damaged = content[:at] + noise + content[at + len(noise) :]
    with contextlib.suppress(HeadraceError):
        parse_header(memoryview(damaged), "file")


def test_a_file_in_parts_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "model-00001-of-00002.gguf"
    numbers = {
        "context_length": 8,
        "embedding_length": 8,
        "block_count": 1,
        "feed_forward_length": 8,
        "attention.head_count": 1,
    }
    pairs = [pair(f"llama.{key}", U32, struct.pack("<I", value)) for key, value in numbers.items()]
    pairs.append(pair("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)))
    pairs.append(pair("llama.vocab_size", U32, struct.pack("<I", 8)))
    pairs += [pair("general.architecture", STRING, text("llama")), pair("split.count", 2, struct.pack("<H", 2))]
    path.write_bytes(forge(pairs, []))
    with pytest.raises(UnsupportedModel, match=r"2 parts.*merge"):
        open_checkpoint(path)


def test_neither_file_nor_directory(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path / "absent", tmp_path):
        with pytest.raises(ModelNotFound, match=str(path)):
            open_checkpoint(path)
