"""Drafts of heads change no bit: sampled and greedy, in chunks, with cached prefixes, preempted, left, on two ranks."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from draft_engine import Built, blocks_of_waiting, fail_following, watch
from engine_harness import Answer, alone, config_of, engine, idle, in_turn, request, together
from plain_heads import FFN, HEADS, LAYER, VOCAB, H, add_mtp
from safetensors.torch import load_file, save_file
from test_draft_heads import TOKENS, balanced, save_target, save_target_with_heads
from test_engine_bits import COUNT, WAYS, leave_half, mixed, same
from tiny_models import prompt as random_prompt

from headrace.client.in_process_client import InProcessClient
from headrace.config import Config, ModelConfig, ParallelConfig
from headrace.platforms.cpu.native import missing
from headrace.tokenization.tokenizer import load_tokenizer

METHODS = ("eagle3", "mtp")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target_with_heads(tmp_path_factory.mktemp("target"), "deepseek")


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target whose layers add nothing: its next token follows from the last one alone, and so does its head's."""
    path = tmp_path_factory.mktemp("oracle")
    save_target(path)
    stored = load_file(path / "model.safetensors")
    add_mtp(path, "qwen3-next")
    tensors = load_file(path / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
        elif name in ("mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"):
            tensor.fill_(1.0)
    tensors["mtp.fc.weight"] = torch.cat([torch.eye(H), torch.zeros(H, H)], 1)
    tensors["mtp.norm.weight"] = stored["model.norm.weight"].clone()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    save_knowing(path / "head", tensors, 0)
    save_knowing(path / "wrong", tensors, 1)
    return path


def save_knowing(directory: Path, target: dict[str, torch.Tensor], shift: int) -> None:
    """An EAGLE-3 head whose output is the embedding of its own entry, normed: with the target's last norm and output
    matrix it says what the oracle's target says, moved by `shift` tokens.

    Queries and keys are the same large vector at every place, so that, rotated, each place attends to itself alone;
    values are the embedding; features, residual and MLP give nothing.
    """
    own, none, one = "midlayer.self_attn.", torch.zeros(H), torch.ones(H)
    tensors = {
        **{f"{own}{name}_proj.weight": torch.zeros(H, 2 * H) for name in "qk"},
        **{f"{own}{name}_proj.bias": torch.full((H,), 20.0 if name != "v" else 0.0) for name in "qkv"},
        f"{own}v_proj.weight": torch.cat([torch.eye(H), torch.zeros(H, H)], 1),
        f"{own}o_proj.weight": torch.eye(H),
        **{f"midlayer.mlp.{name}_proj.weight": torch.zeros(FFN, H) for name in ("gate", "up")},
        "midlayer.mlp.down_proj.weight": torch.zeros(H, FFN),
        "midlayer.input_layernorm.weight": one,
        "midlayer.hidden_norm.weight": none,
        "midlayer.post_attention_layernorm.weight": one.clone(),
        "fc.weight": torch.ones(H, 3 * H),
        "norm.weight": target["model.norm.weight"].clone(),
        "lm_head.weight": target["lm_head.weight"].roll(shift, 0),
    }
    config = {**LAYER, "num_key_value_heads": HEADS, "norm_before_residual": True, "draft_vocab_size": VOCAB}
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors")


def method_of(name: str, target: Path) -> str:
    return f"eagle3:{target / 'head'}" if name == "eagle3" else name


@pytest.fixture(scope="module")
def wanted(target: Path) -> list[Answer]:
    return alone(target, mixed(COUNT, max_tokens=TOKENS))


@pytest.fixture(scope="module")
def known() -> dict[str, list[Answer]]:
    """Answers without drafts that the tests of both methods are held to, by what was asked."""
    return {}


def drafted(built: Built, method: str) -> tuple[int, int]:
    """(drafted, accepted) of the last engine."""
    found = {one.method: one for one in built.engines[-1].core.stats().speculation.methods}
    return sum(found[method].drafted), sum(found[method].accepted)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "sizes",
    [{}, {"chunk": 16}, {"chunk": 11, "seqs": 3}, {"blocks": 20, "chunk": 24}, {"caching": False}],
    ids=str,
)
def test_in_a_batch_cold_then_warm(
    target: Path, wanted: list[Answer], method: str, sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    built = watch(monkeypatch)

    async def main() -> None:
        async with engine(target, speculate=method_of(method, target), **sizes) as client:
            same(await together(client, mixed(COUNT, max_tokens=TOKENS)), wanted)
            same(await together(client, mixed(COUNT, max_tokens=TOKENS)), wanted)
            await idle(client)

    asyncio.run(main())
    balanced(built)
    counts = drafted(built, method)
    assert counts[0] > 10
    assert counts[1] < counts[0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("params", WAYS, ids=str)
def test_a_head_that_knows_the_target_is_always_right(
    oracle: Path, params: dict[str, Any], method: str, known: dict[str, list[Answer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn with the target's own random numbers, under its bias and its allowed tokens."""
    built = watch(monkeypatch)
    requests = [request(random_prompt(9 + at, VOCAB), f"o{at}", max_tokens=TOKENS, **params) for at in range(4)]
    if str(params) not in known:
        known[str(params)] = alone(oracle, requests)
    expected = known[str(params)]

    async def main() -> None:
        async with engine(oracle, speculate=method_of(method, oracle)) as client:
            same(await together(client, requests), expected)
            same(await in_turn(client, requests[:2]), expected[:2])
            await idle(client)

    asyncio.run(main())
    balanced(built)
    counts = drafted(built, method)
    assert counts[0] == counts[1] > 40


def test_a_head_that_is_always_wrong_changes_nothing(oracle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the token after the one that comes."""
    built = watch(monkeypatch)
    requests = [request(random_prompt(9 + at, VOCAB), f"o{at}", max_tokens=TOKENS) for at in range(4)]
    expected = alone(oracle, requests)

    async def main() -> None:
        async with engine(oracle, speculate=f"eagle3:{oracle / 'wrong'}") as client:
            same(await together(client, requests), expected)
            await idle(client)

    asyncio.run(main())
    balanced(built)
    made, right = drafted(built, "eagle3")
    assert made > 40
    assert right == 0


@pytest.mark.parametrize("method", METHODS)
def test_preempted(target: Path, method: str, known: dict[str, list[Answer]], monkeypatch: pytest.MonkeyPatch) -> None:
    built = watch(monkeypatch)
    waiting = blocks_of_waiting(monkeypatch, built)
    requests = [
        request(random_prompt(64 + at, VOCAB)[:64], f"p{at}", max_tokens=48, **WAYS[at % len(WAYS)]) for at in range(12)
    ]
    if "preempted" not in known:
        known["preempted"] = alone(target, requests[::5])
    expected = known["preempted"]

    async def main() -> None:
        async with engine(target, blocks=36, chunk=16, speculate=method_of(method, target)) as client:
            same((await together(client, requests))[::5], expected)
            assert (await idle(client)).scheduler.preemptions > 0
            assert len(waiting) > 10
            assert not any(waiting)

    asyncio.run(main())
    balanced(built)


@pytest.mark.parametrize("method", METHODS)
def test_requests_that_are_left_free_every_block(target: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built = watch(monkeypatch)
    rng = random.Random(3)

    async def main() -> None:
        async with engine(target, blocks=40, chunk=32, speculate=method_of(method, target)) as client:
            for _ in range(5):
                await leave_half(client, mixed(COUNT, max_tokens=TOKENS), rng)
            await idle(client)

    asyncio.run(main())
    balanced(built)


@pytest.mark.skipif(missing() is not None, reason="the native kernels are not built")
def test_a_pass_that_nothing_waits_for_may_fail(
    target: Path, wanted: list[Answer], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error is found with a later round, and answers stay the same."""
    built = watch(monkeypatch)
    fail_following(monkeypatch, built)

    async def main() -> None:
        async with engine(target, speculate=method_of("eagle3", target)) as client:
            same(await together(client, mixed(COUNT, max_tokens=TOKENS)), wanted)
            await idle(client)

    asyncio.run(main())
    head = built.engines[-1].head
    assert head is not None
    assert head.failures == 1
    assert caplog.text.count("failed, and drafts no more: a kernel failed") == 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.skipif(missing() is not None, reason="the native kernels are not built")
def test_two_ranks(target: Path, method: str, known: dict[str, list[Answer]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 alone has the head, with tables of its own."""
    requests = mixed(6, max_tokens=12)

    def config(speculate: str | None) -> Config:
        changes = {
            "parallel": ParallelConfig(tensor_parallel_size=2),
            "model": ModelConfig(model=str(target), dtype="float32"),
        }
        return config_of(target, chunk=16, speculate=speculate).model_copy(update=changes)

    async def run(speculate: str | None) -> list[Answer]:
        client = InProcessClient(config(speculate), load_tokenizer(target))
        await client.start()
        try:
            return await in_turn(client, requests)
        finally:
            await client.close()

    if "two ranks" not in known:
        known["two ranks"] = asyncio.run(run(None))
    built = watch(monkeypatch)
    same(asyncio.run(run(method_of(method, target))), known["two ranks"])
    balanced(built)
    assert drafted(built, method)[0] > 10
