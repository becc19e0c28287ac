"""`headrace train-drafter` on a tiny model: what the target gives, the files, breaks, and wrong inputs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from draft_engine import watch
from engine_harness import alone, engine, idle, request, together
from safetensors.torch import load_file
from server_harness import VOCAB
from test_engine_bits import same

from headrace.cli import training_view
from headrace.cli.main import main
from headrace.kernels.sample.philox import gumbel
from headrace.options import make_config
from headrace.training import drafter_training
from headrace.training.answers import load_answers
from headrace.training.target_reader import TargetReader

METHODS = ("eagle3", "mtp", "dflash")
SIZES = ["--answers", "32", "--answer-tokens", "12", "--epochs", "2"]
OF_METHODS = {
    "eagle3": ["--draft-vocabulary", "64"],
    "mtp": [],
    "dflash": ["--draft-vocabulary", "64", "--layers", "1"],
}
ENGINE = ["--platform", "cpu", "--threads", "1", "--num-blocks", "200", "--max-num-seqs", "8", "--packed-cache", "0"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(
        "\n".join(f"Line {number} has {number % 7} wheels and {number % 5} stones." for number in range(400))
    )
    return path


def train(model: Path, text: Path, out: Path, method: str, *more: str) -> int:
    arguments = ["train-drafter", str(model), "--method", method, "--text", str(text), "--out", str(out)]
    return main([*arguments, *SIZES, *OF_METHODS.get(method, []), *ENGINE, *more])


@pytest.fixture(scope="module")
def trained(tiny_llama: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head of each method, below one directory."""
    out = tmp_path_factory.mktemp("heads")
    for method in METHODS:
        assert train(tiny_llama, text, out / method, method) == 0
    return out


@pytest.mark.parametrize("method", METHODS)
def test_a_head_is_written(method: str, trained: Path) -> None:
    found = load_file(trained / method / "model.safetensors")
    config = json.loads((trained / method / "config.json").read_text())
    layers = config["transformer_layer_config"] if method == "dflash" else config
    assert (layers["hidden_size"], layers["vocab_size"]) == (32, VOCAB)
    name = {
        "eagle3": "midlayer.self_attn.q_proj.weight",
        "mtp": "model.layers.2.self_attn.q_proj.weight",
        "dflash": "layers.0.self_attn.q_proj.weight",
    }[method]
    heads = layers["num_attention_heads"] * layers["head_dim"]
    assert found[name].shape == (heads, 64 if method == "eagle3" else 32)
    assert all(tensor.isfinite().all() for tensor in found.values())
    if method != "mtp":
        assert len(found["d2t"]) == config["draft_vocab_size"] == 64
    if method == "dflash":
        assert config["mask_token_id"] == 3
    facts = json.loads((trained / method / "training.json").read_text())
    assert facts["steps"] == 16
    assert facts["settings"]["method"] == method
    assert len(facts["acceptance"]["accepted"]["greedy"]) == facts["acceptance"]["drafts"]
    assert sorted(path.name for path in (trained / method / "training").iterdir()) == ["answers.jsonl", "settings.json"]


def test_answers_are_the_targets_own_samples(trained: Path, tiny_llama: Path) -> None:
    """By the engine's rule: at a temperature, with the draw of the seed and the token's position."""
    answers = load_answers(trained / "eagle3" / "training" / "answers.jsonl")
    assert len(answers) == 32
    assert sum(one.held_out for one in answers) == 2
    model = tiny_models.load_reference(tiny_llama)
    for one in answers[:6]:
        tokens = torch.tensor([*one.prompt, *one.tokens])
        logits = tiny_models.reference_logits(model, tokens.tolist())
        positions = torch.arange(len(one.prompt), len(tokens))
        scores = logits[positions - 1]
        if one.temperature:
            noise = gumbel(torch.full_like(positions, one.seed), positions, VOCAB)
            scores = scores / one.temperature + noise
        assert (scores.argmax(-1) == tokens[positions]).float().mean() > 0.9


@pytest.mark.parametrize("variant", ["llama", "gemma3", "qwen3-bias-tied"])
@pytest.mark.parametrize("reference", [False, True])
def test_features_are_the_hidden_states_of_transformers(variant: str, reference: bool, tmp_path: Path) -> None:
    """The residual stream entering each layer, the one after the last, and the last norm's output."""
    model = tiny_models.save(variant, tmp_path)
    layers = model.config.num_hidden_layers
    config = make_config(
        str(tmp_path),
        {"platform": "cpu", "threads": 1, "dtype": "float32", "packed_cache": 0, **_kernels(reference)},
    )
    reader = TargetReader(config, (0, 1, layers - 1, layers), 64)
    streams: list[torch.Tensor] = []
    norm = model.model.norm
    norm.register_forward_pre_hook(lambda module, given: streams.append(given[0][0]))
    try:
        for length in (40, 17):
            ids = tiny_models.prompt(length)
            features, final = reader.read(ids)
            with torch.no_grad():
                states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
            wanted = [states[0][0], states[1][0], states[layers - 1][0], streams[-1]]
            torch.testing.assert_close(features, torch.cat(wanted, 1), atol=1e-3, rtol=1e-3)
            torch.testing.assert_close(final, states[layers][0], atol=1e-3, rtol=1e-3)
    finally:
        reader.close()


def _kernels(reference: bool) -> dict[str, Any]:
    return {"device_options": {"float32_copies": 1 << 20}} if reference else {}


@pytest.mark.parametrize("method", METHODS)
def test_a_signal_saves_and_resuming_gives_the_same_head(
    method: str, trained: Path, tiny_llama: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    """Stopped twice, by each signal, and gone on with."""
    # A shell starts what runs in the background with this signal ignored.
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, interrupt))
    step = training_view.TerminalView.step

    def signalling(self: training_view.TerminalView, done: int, total: int, loss: float) -> None:
        step(self, done, total, loss)
        if done in (3, 9):
            os.kill(os.getpid(), signal.SIGINT if done == 3 else signal.SIGTERM)

    monkeypatch.setattr(training_view.TerminalView, "step", signalling)
    out, before = tmp_path / "head", signal.getsignal(signal.SIGTERM)
    assert train(tiny_llama, text, out, method) == 130
    assert "the same command with --resume goes on" in capsys.readouterr().out
    assert not (out / "config.json").exists()
    assert train(tiny_llama, text, out, method, "--resume") == 130
    assert signal.getsignal(signal.SIGTERM) == before
    assert train(tiny_llama, text, out, method, "--resume") == 0
    assert "goes on after step 9 of 16" in capsys.readouterr().out
    for name in ("model.safetensors", "config.json", "training.json"):
        assert (out / name).read_bytes() == (trained / method / name).read_bytes(), name


def test_answers_that_are_there_are_kept(trained: Path, tiny_llama: Path, text: Path, tmp_path: Path) -> None:
    """A command that ended while the model answered goes on with the next answer."""
    out, first = tmp_path / "head", trained / "mtp" / "training"
    (out / "training").mkdir(parents=True)
    (out / "training" / "settings.json").write_bytes((first / "settings.json").read_bytes())
    lines = (first / "answers.jsonl").read_bytes().splitlines(keepends=True)
    (out / "training" / "answers.jsonl").write_bytes(b"".join(lines[:20]) + lines[20][:9])
    assert train(tiny_llama, text, out, "mtp", "--resume") == 0
    assert (out / "training" / "answers.jsonl").read_bytes() == b"".join(lines)
    assert (out / "model.safetensors").read_bytes() == (trained / "mtp" / "model.safetensors").read_bytes()


def test_answers_of_another_method_are_taken(
    trained: Path, tiny_llama: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model answers nothing, and the head is the one of answers of its own."""
    monkeypatch.setattr(drafter_training, "write_answers", None)
    moved = tmp_path / "moved"
    moved.symlink_to(tiny_llama)
    assert train(moved, text, tmp_path / "head", "mtp", "--answers-from", str(trained / "eagle3")) == 0
    for name in ("model.safetensors", "training/answers.jsonl"):
        assert (tmp_path / "head" / name).read_bytes() == (trained / "mtp" / name).read_bytes(), name


def wrong(capsys: pytest.CaptureFixture[str], model: Path, arguments: Sequence[str]) -> str:
    assert main(["train-drafter", str(model), *arguments, *ENGINE]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            ["--text", "{short}"],
            "--text: it gives 2 pieces, each for 4 prompts at most, and 32 answers need at least 32",
        ),
        (["--text", "/nowhere"], "--text /nowhere: there is no such file or directory"),
        (["--out", "{here}"], "it is not an empty directory: choose another, or go on there with --resume"),
        (["--resume"], "--resume: no training was begun in"),
        (["--answers", "0"], "--answers 0: at least 1"),
        (["--answers", "31"], "--answers 31: at least 32, of which two are held out"),
        (["--answer-tokens", "500"], "--answer-tokens 500: of the model's context of 512 tokens it leaves 12"),
        (["--answer-tokens", "4"], "--answer-tokens 4: at least 5, since a draft has 3 tokens"),
        (["--answer-tokens", "8", "--method", "dflash"], "--answer-tokens 8: at least 9, since a draft has 7 tokens"),
        (["--rate", "2"], "--rate 2: a number between 0 and 1"),
        (["--answers-from", "{here}"], "--answers-from {here}: no head was trained there, so it has no answers"),
        (["--seed", "-1"], "--seed -1: at least 0"),
        (["--tensor-parallel-size", "2"], "a head is trained on one rank: leave out --tensor-parallel-size"),
    ],
)
def test_wrong_inputs(
    more: list[str], why: str, tiny_llama: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.txt").write_text("A text. " * 60)
    places = {"short": tmp_path / "short.txt", "here": tmp_path}
    given = [one.format(**places) for one in more]
    base = ["--method", "eagle3", "--text", str(text), "--out", str(tmp_path / "new"), *SIZES]
    assert why.format(**places) in wrong(capsys, tiny_llama, [*base, *given])
    assert not (tmp_path / "new").exists()


def test_a_model_whose_answers_are_too_short(
    trained: Path, tiny_llama: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That shows only once they are made."""
    shutil.copytree(trained / "mtp" / "training", tmp_path / "before" / "training")
    file = tmp_path / "before" / "training" / "answers.jsonl"
    answers = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**one, "tokens": one["tokens"][:4]}) + "\n" for one in answers))
    assert train(tiny_llama, text, tmp_path / "new", "mtp", "--answers-from", str(tmp_path / "before")) == 2
    said = capsys.readouterr().err
    assert "the answers are too short: 0 of 32 can be trained on and 0 held out, since a draft has 3 tokens" in said


def test_a_method_that_is_none(
    tiny_llama: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        train(tiny_llama, text, tmp_path, "medusa")
    assert "argument --method: invalid choice: 'medusa'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "option", "of"), [("eagle3", "--layers", "dflash"), ("mtp", "--draft-vocabulary", "eagle3 and dflash")]
)
def test_an_option_of_another_method_is_refused(
    method: str, option: str, of: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--method", method, "--text", str(tmp_path), "--out", str(tmp_path / "new"), option, "2"]
    assert f"{option}: --method {method} does not have it, only {of}: leave it out" in wrong(capsys, tmp_path, base)


def test_a_training_with_other_options_is_not_gone_on_with(
    trained: Path, tiny_llama: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--method", "eagle3", "--text", str(text), "--out", str(trained / "eagle3"), *SIZES, *OF_METHODS["eagle3"]]
    base += ["--resume"]
    assert "--seed was 0 when the training was begun, and is 4 now" in wrong(capsys, tiny_llama, [*base, "--seed", "4"])


def test_an_engine_drafts_with_the_trained_block_drafter(
    trained: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = watch(monkeypatch)
    requests = [request([ord(char) for char in f"Line {at} has"], f"t{at}", max_tokens=24) for at in range(6)]
    expected = alone(tiny_llama, requests)

    async def main() -> None:
        async with engine(tiny_llama, speculate=f"dflash:{trained / 'dflash'}") as client:
            same(await together(client, requests), expected)
            await idle(client)

    asyncio.run(main())
    assert built.counts.drafted > 20
