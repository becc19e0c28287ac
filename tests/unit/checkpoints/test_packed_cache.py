"""The cache of packed weights with a device that packs nothing but remembers: hits, misses, damage, eviction."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.checkpoints.packed import cache as cache_module
from headrace.checkpoints.packed import content
from headrace.checkpoints.packed.cache import PackedCache, clear, kept, open_cache
from headrace.checkpoints.packed.content import Contents, checkpoint_files
from headrace.checkpoints.packed.tree import Uncacheable, decode, encode
from headrace.config import Config, ModelConfig
from headrace.errors import PlatformError
from headrace.kernels.weight import Weight
from headrace.models.decoder import DecoderWeights, LayerWeights
from headrace.models.sharding import Shard
from headrace.quant.weights import dense, stack

KEY = "fake"


class Forms:
    """Weights whose name begins with p are packed: their bytes, reversed."""

    def __init__(self, identity: str = "one") -> None:
        self.identity = identity
        self.taken = 0

    def dump(self, weight: Weight) -> tuple[dict[str, Any], list[torch.Tensor]] | None:
        packed = weight.prepared.get(KEY)
        return None if packed is None else ({"by": self.identity}, [packed])

    def load(self, weight: Weight, header: dict[str, Any], buffers: Sequence[torch.Tensor]) -> None:
        assert header == {"by": self.identity}
        weight.prepared[KEY] = buffers[0]

    def take(self, size: int) -> torch.Tensor:
        self.taken += size
        return torch.zeros(size, dtype=torch.uint8)


def matrix(name: str, seed: int, rows: int = 4) -> Weight:
    values = torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed)).bfloat16()
    weight = dense(values, name)
    if name.startswith("p"):
        weight.prepared[KEY] = values.flip(0).contiguous()
    return weight


def model(tied: bool = True) -> DecoderWeights:
    def layer(seed: int) -> LayerWeights:
        qkv = stack([matrix("q", seed), matrix("k", seed + 1)], "pqkv")
        qkv.bias = torch.arange(8.0)
        qkv.prepared[KEY] = torch.arange(64, dtype=torch.int32)
        both = stack([matrix("pa", seed + 2), matrix("pb", seed + 3)], "parts packed apart")
        return LayerWeights(torch.ones(8), qkv, matrix("po", seed), torch.zeros(8), both, matrix("plain", seed))

    embedding = matrix("p embedding", 1)
    return DecoderWeights(embedding, [layer(10), layer(20)], torch.ones(8), embedding if tied else matrix("head", 2))


def same(found: Weight, wanted: Weight) -> None:
    assert (found.name, found.shape, found.scheme, found.activation) == (
        wanted.name, wanted.shape, wanted.scheme, wanted.activation,
    )  # fmt: skip
    assert (found.bias is None) == (wanted.bias is None)
    if wanted.bias is not None and found.bias is not None:
        assert torch.equal(found.bias, wanted.bias)
    if KEY in wanted.prepared:
        assert torch.equal(found.prepared[KEY], wanted.prepared[KEY])
        assert not found.tensors
    elif wanted.parts:
        for one, other in zip(found.parts, wanted.parts, strict=True):
            same(one, other)
    else:
        assert torch.equal(found.tensors["weight"], wanted.tensors["weight"])


def all_same(found: Any, wanted: DecoderWeights) -> None:
    assert isinstance(found, DecoderWeights)
    assert (found.head is found.embedding) == (wanted.head is wanted.embedding)
    for weights in zip([found.embedding, found.head], [wanted.embedding, wanted.head], strict=True):
        same(*weights)
    for one, other in zip(found.layers, wanted.layers, strict=True):
        assert torch.equal(one.input_norm, other.input_norm)
        assert one.q_norm is None
        for name in ("qkv", "output", "gate_up", "down"):
            same(getattr(one, name), getattr(other, name))


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cache_module, "_WORTH", 0)
    monkeypatch.setattr(content, "_SETTLED_NS", 0)
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


def cache_of(path: Path, forms: Forms | None = None, limit: int = 1 << 30, **settings: Any) -> PackedCache:
    return PackedCache(path.parent / "packed", limit, path, settings, forms or Forms())


def put(path: Path, weights: Any = None, **options: Any) -> Path:
    cache = cache_of(path, **options)
    before = set((path.parent / "packed").glob("*.packed"))
    cache.save(weights or model())
    cache.wait()
    (new,) = set((path.parent / "packed").glob("*.packed")) - before
    return new


@pytest.mark.parametrize("tied", [True, False])
def test_weights_come_back_as_they_were(tied: bool) -> None:
    forms, wanted = Forms(), model(tied)
    tree, buffers = encode(wanted, forms)
    stored = [buffer.reshape(-1).view(torch.uint8) for buffer in buffers]
    found = decode(tree, stored, forms)
    all_same(found, wanted)
    with pytest.raises(PlatformError, match=r"p embedding.*packed form alone"):
        found.embedding.dequantize()


def test_a_tree_of_other_classes_is_not_built() -> None:
    for bad in ({"class": "pathlib:Path", "fields": {}}, {"call": "headrace.models.decoder:Decoder"}):
        with pytest.raises(ValueError, match="not of the models"):
            decode({"root": bad, "weights": []}, [], Forms())


def test_what_cannot_be_kept_is_told(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    @dataclass
    class Foreign:
        weight: int = 1

    with pytest.raises(Uncacheable, match="Foreign"):
        encode([Foreign()], Forms())
    odd = Weight("gguf:q4_0", (1, 32), {}, Weight.dequantize, name="odd")
    cache = cache_of(checkpoint)
    with caplog.at_level(logging.INFO):
        cache.save(odd)
        cache.wait()
    assert "odd (gguf:q4_0) has no packed form" in caplog.text
    assert cache_of(checkpoint).load() is None


def test_a_second_start_finds_what_the_first_one_kept(checkpoint: Path) -> None:
    assert cache_of(checkpoint).load() is None
    put(checkpoint)
    forms = Forms()
    all_same(cache_of(checkpoint, forms).load(), model())
    assert forms.taken > 0


def test_the_source_is_not_read_again(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(checkpoint)
    monkeypatch.setattr(content, "_sha256", lambda file: pytest.fail("read again"))
    assert cache_of(checkpoint).load() is not None


def test_the_same_bytes_with_another_time_are_the_same_model(checkpoint: Path) -> None:
    put(checkpoint)
    os.utime(checkpoint, ns=(1, 1))
    assert cache_of(checkpoint).load() is not None


def test_other_bytes_of_the_same_size_are_another_model(checkpoint: Path) -> None:
    put(checkpoint)
    checkpoint.write_bytes(b"WEIGHTS")
    assert cache_of(checkpoint).load() is None


def test_every_setting_and_form_has_a_file_of_its_own(checkpoint: Path) -> None:
    put(checkpoint)
    assert cache_of(checkpoint, quantize="int4").load() is None
    assert cache_of(checkpoint, Forms("two")).load() is None
    put(checkpoint, quantize="int4")
    assert cache_of(checkpoint, quantize="int4").load() is not None
    assert cache_of(checkpoint).load() is not None


def test_a_damaged_file_is_said_and_removed(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = put(checkpoint)
    data = bytearray(path.read_bytes())
    data[-70] ^= 1
    path.write_bytes(data)
    assert cache_of(checkpoint).load() is None
    assert "packed again" in caplog.text
    assert path.name in caplog.text
    assert not path.exists()
    put(checkpoint)
    assert cache_of(checkpoint).load() is not None


def test_a_sound_file_under_anothers_name_is_refused(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    mine = put(checkpoint)
    other = put(checkpoint, quantize="int8")
    mine.write_bytes(other.read_bytes())
    assert cache_of(checkpoint).load() is None
    assert "another model" in caplog.text


def test_an_index_of_nonsense_costs_a_reading(checkpoint: Path) -> None:
    put(checkpoint)
    for text in ("", "[1]", '{"x": 3}', "{"):
        (checkpoint.parent / "packed" / "contents.json").write_text(text)
        assert cache_of(checkpoint).load() is not None


def test_a_file_that_may_still_change_is_not_remembered(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "_SETTLED_NS", 10**18)
    contents = Contents(checkpoint.parent / "index.json")
    assert contents.digest([checkpoint])
    assert contents.known([checkpoint]) is None
    assert not (checkpoint.parent / "index.json").exists()


def test_what_was_used_longest_ago_is_evicted(checkpoint: Path) -> None:
    first, second = put(checkpoint, quantize="a"), put(checkpoint, quantize="b")
    os.utime(first, (100, 100))
    os.utime(second, (50, 50))
    assert cache_of(checkpoint, quantize="b").load() is not None, "used: the newest now"
    room = 2 * first.stat().st_size + 100
    third = put(checkpoint, quantize="c", limit=room)
    assert set(first.parent.glob("*.packed")) == {second, third}


def test_files_that_another_process_removes_meanwhile(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = checkpoint.parent / "packed"
    removed = [put(checkpoint, quantize="a"), directory / ".a.tmp"]
    removed[1].touch()
    stat = Path.stat

    def racing(path: Path, **options: Any) -> os.stat_result:
        found = stat(path, **options)
        if path in removed:
            # Gone behind the look at the directory.
            path.unlink()
            removed.remove(path)
        return found

    monkeypatch.setattr(Path, "stat", racing)
    kept_file = put(checkpoint, quantize="b")
    assert removed == []
    assert list(directory.glob("*.packed")) == [kept_file]
    assert "could not be kept" not in caplog.text


def test_a_model_larger_than_the_cache_is_not_kept(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = put(checkpoint)
    cache = cache_of(checkpoint, limit=100, quantize="x")
    with caplog.at_level(logging.INFO):
        cache.save(model())
        cache.wait()
    assert "of 100 allowed" in caplog.text
    assert first.exists()


def test_a_directory_that_cannot_be_written_is_told(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    (checkpoint.parent / "packed").write_text("in the way")
    cache = cache_of(checkpoint)
    assert cache.load() is None
    cache.save(model())
    cache.wait()
    assert "could not be kept" in caplog.text


def test_listing_and_clearing(checkpoint: Path) -> None:
    directory = checkpoint.parent / "packed"
    first, second = put(checkpoint), put(checkpoint, quantize="int8")
    os.utime(second, (50, 50))
    (directory / "broken.packed").write_bytes(b"no")
    os.utime(directory / "broken.packed", (10, 10))
    found = kept(directory)
    assert [entry.path.name for entry in found] == ["broken.packed", second.name, first.name]
    assert found[0].about == {}
    assert found[1].about == {"model": str(checkpoint), "form": "one", "quantize": "int8"}
    assert {entry.path for entry in clear(directory)} == {entry.path for entry in found}
    assert kept(directory) == []
    assert kept(checkpoint.parent / "nowhere") == []


def test_who_has_a_cache(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(checkpoint.parent / "home"))
    config = Config(model=ModelConfig(model=str(checkpoint)))
    assert open_cache(config, checkpoint, (), None) is None
    assert open_cache(Config(model=ModelConfig(packed_cache=0)), checkpoint, (), Forms()) is None
    cache = open_cache(config, checkpoint, (), Forms())
    assert cache is not None
    cache.save(model())
    cache.wait()
    assert len(list((checkpoint.parent / "home" / "packed").glob("*.packed"))) == 1


def test_a_checkpoint_is_its_weights_and_settings(tmp_path: Path) -> None:
    for name in ("b.safetensors", "a.safetensors", "config.json", "notes.txt"):
        (tmp_path / name).write_text(name)
    assert [file.name for file in checkpoint_files(tmp_path)] == ["a.safetensors", "b.safetensors", "config.json"]
    assert checkpoint_files(tmp_path / "config.json") == [tmp_path / "config.json"]


def test_ranks_keep_a_file_each_and_count_all_of_them(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    directory = checkpoint.parent / "packed"

    def part(rank: int, size: int, limit: int = 1 << 30) -> PackedCache:
        return PackedCache(directory, limit, checkpoint, {}, Forms(), Shard(rank, size))

    def save(cache: PackedCache) -> None:
        cache.save(model())
        cache.wait()

    for rank in range(2):
        save(part(rank, 2))
    assert sorted(entry.about["part"] for entry in kept(directory)) == ["rank 0 of 2", "rank 1 of 2"]
    assert part(0, 1).load() is None
    assert part(1, 3).load() is None
    assert part(1, 2).load() is not None
    payload = sum(buffer.nbytes for buffer in encode(model(), Forms())[1])
    save(part(0, 3, 3 * payload - 1))
    assert f"they take {3 * payload} bytes of {3 * payload - 1} allowed" in caplog.text
    assert len(kept(directory)) == 2


def test_another_way_to_cut_is_another_part(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for cut in ("now", "later"):
        monkeypatch.setattr(cache_module, "_cutting", lambda cut=cut: cut)
        cache = PackedCache(checkpoint.parent / "packed", 1 << 30, checkpoint, {}, Forms(), Shard(0, 2))
        assert cache.load() is None
        cache.save(model())
        cache.wait()
        names.append({entry.path.name for entry in kept(checkpoint.parent / "packed")})
    assert names[0] < names[1]


def test_one_of_several_ranks_reads_the_checkpoint(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, begun = [], threading.Event()
    sha256 = content._sha256

    def slow(file: Path) -> str:
        reads.append(file)
        begun.set()
        time.sleep(0.1)  # the others come while it reads
        return sha256(file)

    monkeypatch.setattr(content, "_sha256", slow)
    index = checkpoint.parent / "packed" / "contents.json"
    made = [Contents(index) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(made[0].digest, [checkpoint])
        begun.wait()
        others = [pool.submit(one.digest, [checkpoint]) for one in made[1:]]
        assert {first.result(), *(other.result() for other in others)} == {first.result()}
    assert reads == [checkpoint]
