"""Trained heads in the engine: they load, keep every bit, and draft what the training has measured."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from draft_engine import watch
from engine_harness import GroupingClient, alone, config_of, engine, idle, request, together
from gguf import GGMLQuantizationType
from gguf_export import export
from safetensors.torch import load_file
from test_draft_heads import Rounds
from test_engine_bits import same

from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.cli.main import main
from headrace.options import make_config
from headrace.tokenization.tokenizer import load_tokenizer
from headrace.training.answers import Answer, load_answers
from headrace.training.make_head import make_head
from headrace.training.settings import TrainingSettings
from headrace.training.target_reader import TargetReader
from headrace.training.training_head import Example

METHODS = ("eagle3", "mtp", "dflash")
ENGINE = ["--platform", "cpu", "--threads", "1", "--num-blocks", "200", "--max-num-seqs", "8", "--packed-cache", "0"]
SIZES = "--answers 32 --answer-tokens 24 --epochs 3 --batch 2 --rate 5e-3".split()
OF_METHODS = {
    "eagle3": ["--draft-vocabulary", "200"],
    "mtp": [],
    "dflash": ["--draft-vocabulary", "200", "--layers", "1"],
}


@pytest.fixture(scope="module")
def trained(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head of each method for `tiny_llama`."""
    out = tmp_path_factory.mktemp("heads")
    text = out / "text.txt"
    text.write_text(
        "\n".join(f"Line {number} has {number % 7} wheels and {number % 5} stones." for number in range(300))
    )
    for method in METHODS:
        arguments = ["train-drafter", str(tiny_llama), "--method", method, "--text", str(text)]
        assert main([*arguments, "--out", str(out / method), *SIZES, *OF_METHODS[method], *ENGINE]) == 0
    return out


def answers(trained: Path, method: str) -> list[Answer]:
    return load_answers(trained / method / "training" / "answers.jsonl")


@pytest.mark.parametrize("method", METHODS)
def test_answers_keep_every_bit(method: str, trained: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = watch(monkeypatch)
    requests = [
        request(one.prompt, f"a{at}", max_tokens=24, temperature=one.temperature, seed=one.seed)
        for at, one in enumerate(answers(trained, method)[:8])
    ]
    expected = alone(tiny_llama, requests)
    counts: Any = None

    async def run() -> None:
        nonlocal counts
        async with engine(tiny_llama, speculate=f"{method}:{trained / method}") as client:
            same(await together(client, requests), expected)
            await idle(client)
            counts = next(one for one in built.engines[-1].core.stats().speculation.methods if one.method == method)

    asyncio.run(run())
    assert counts.rounds > 10
    assert counts.accepted[0] > 0
    for one, found in zip(answers(trained, method), expected, strict=False):
        assert one.tokens == found.ids[: len(one.tokens)]


@pytest.mark.parametrize("method", ["eagle3", "mtp"])
def test_the_engine_drafts_what_the_training_measures(
    method: str, trained: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Place by place: whether each draft is the target's own sample, up to the first that is not."""
    watch(monkeypatch)
    rounds, some = Rounds(monkeypatch), answers(trained, method)[:6]
    requests = [
        request(one.prompt, f"a{at}", max_tokens=len(one.tokens), temperature=one.temperature, seed=one.seed)
        for at, one in enumerate(some)
    ]

    async def run() -> None:
        async with engine(tiny_llama, speculate=f"{method}:{trained / method}") as client:
            await together(client, requests)

    asyncio.run(run())
    agreements = measured(method, trained, tiny_llama, some)
    compared = equal = 0
    for tokens, _, drafts in rounds.found:
        one = next(one for one in some if [*one.prompt, *one.tokens][: len(tokens)] == tokens)
        row = len(tokens) - 1 - len(one.prompt)
        agreed = agreements[tuple(one.prompt)]
        if row >= len(agreed) or not drafts:
            continue
        truth = one.tokens[row + 1 :][: len(drafts)]
        found = _leading([draft == token for draft, token in zip(drafts, truth, strict=True)])
        compared += 1
        equal += found == _leading(agreed[row][: len(drafts)])
    assert compared > 30
    # The engine's head computes in 16 bits, which turns near ties.
    assert equal >= 0.9 * compared


def _leading(agreed: list[bool]) -> int:
    return next((at for at, one in enumerate(agreed) if not one), len(agreed))


def measured(method: str, trained: Path, model: Path, some: list[Answer]) -> dict[tuple[int, ...], list[list[bool]]]:
    """By prompt: `TrainingHead.agreement` of the head as it was written."""
    checkpoint, ops = open_checkpoint(model), None
    facts = json.loads((trained / method / "training.json").read_text())["settings"]
    weights = checkpoint.build(ops, 1).weights  # type: ignore[arg-type]
    tokenizer = load_tokenizer(model)
    head: Any = make_head(TrainingSettings(**facts), checkpoint, weights, answers(trained, method), tokenizer)
    stored = load_file(trained / method / "model.safetensors")
    with torch.no_grad():
        for name, parameter in zip(head.tensors(), head.parameters(), strict=False):
            parameter.copy_(stored[name].float())
    options = {"platform": "cpu", "threads": 1, "packed_cache": 0}
    reader, found = TargetReader(make_config(str(model), options), head.points, 400), {}
    try:
        for one in some:
            tokens = [*one.prompt, *one.tokens]
            read = Example(torch.tensor(tokens), len(one.prompt), *reader.read(tokens), one.temperature, one.seed)
            with torch.no_grad():
                found[tuple(one.prompt)] = head.agreement(read).tolist()
    finally:
        reader.close()
    return found


@pytest.mark.parametrize("method", METHODS)
def test_a_gguf_may_be_the_target(
    method: str, trained: Path, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here of the same model: the answers are drafted as often."""
    built, target = watch(monkeypatch), tmp_path / "target.gguf"
    export(tiny_models.load_reference(tiny_llama), target, GGMLQuantizationType.F32)
    requests = [
        request(one.prompt, f"a{at}", max_tokens=24, temperature=one.temperature, seed=one.seed)
        for at, one in enumerate(answers(trained, method)[:6])
    ]

    async def run(speculate: str | None) -> list[Any]:
        client = GroupingClient(config_of(target, speculate=speculate), load_tokenizer(tiny_llama))
        await client.start()
        try:
            return await together(client, requests)
        finally:
            await client.close()

    same(asyncio.run(run(f"{method}:{trained / method}")), asyncio.run(run(None)))
    counts = next(one for one in built.engines[0].core.stats().speculation.methods if one.method == method)
    assert counts.accepted[0] > 0


def test_other_directories_are_refused(trained: Path, tiny_llama: Path) -> None:
    async def run(speculate: str) -> None:
        async with engine(tiny_llama, speculate=speculate):
            raise AssertionError("it was taken")

    with pytest.raises(Exception, match="eagle3: the checkpoint has no head for multi-token prediction"):
        asyncio.run(run(f"mtp:{trained / 'eagle3'}"))
    with pytest.raises(Exception, match=r"no directory of a draft head: it has no config\.json"):
        asyncio.run(run(f"mtp:{trained}"))
