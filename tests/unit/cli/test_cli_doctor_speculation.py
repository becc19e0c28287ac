"""The methods of speculative decoding in `headrace doctor`."""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy
import pytest
import torch
from safetensors.torch import save_file

from headrace.cli.main import main
from headrace.cli.speculation_facts import add_depths, speculation_facts, speculation_lines
from headrace.kernels.registry import OPTIONAL
from headrace.plugins import GROUP, PluginSet, discover
from headrace.speculation.loading import BUILT_IN, NEEDS
from headrace.speculation.ngram import NgramDrafter

hookimpl = pluggy.HookimplMarker("headrace")


def plugins(monkeypatch: pytest.MonkeyPatch, table: Any) -> PluginSet:
    """With one plugin, whose hook returns the table."""
    module: Any = ModuleType("plugin_with_drafters")
    module.Mill = NgramDrafter
    module.headrace_drafters = hookimpl(lambda: table)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return discover([EntryPoint("mills", module.__name__, GROUP)])


def test_every_method_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert NEEDS.keys() >= BUILT_IN.keys()
    assert main(["doctor", "--platform", "sim", "--json", "--speculate", "ngram"]) == 0
    facts = json.loads(capsys.readouterr().out)["speculation"]
    assert {fact["name"] for fact in facts} >= {"ngram", "suffix", "predicted"}
    assert [fact["name"] for fact in facts if fact["chosen"]] == ["ngram"]
    assert all(fact["needs"] and fact["problem"] is None for fact in facts)
    depths = {fact["name"]: (fact["depth"], fact["why"]) for fact in facts}
    between = "drafts are made between two steps"
    assert depths["suffix"] == (1, between)
    assert depths["ngram"] == (1, f"{between}: the device lacks ngram, place, accept")
    assert depths["eagle3"] == (1, f"{between}: the device lacks place, accept, read_drafts, shift")
    assert main(["doctor", "--platform", "sim", "--speculate", "suffix"]) == 0
    said = capsys.readouterr().out
    assert " *suffix      built in: needs nothing else; it keeps" in said
    assert "  predicted   built in: needs requests with a `prediction`" in said


def test_a_device_that_drafts_has_two_steps_in_flight(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--platform", "cpu"]) == 0
    said = capsys.readouterr().out
    why = "; depth 2 (the device makes the drafts, except those of predictions"
    assert f"  ngram       built in: needs nothing else{why} and of pipelines)" in said
    assert said.count(f"{why})") == 3


def test_an_unknown_method_is_a_fact_with_its_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--platform", "sim", "--json", "--speculate", "tarot"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["usable"]
    said = "'tarot' is not installed; there are dflash:CHECKPOINT, draft:MODEL,"
    assert any(said in remedy for remedy in report["remedies"])
    assert not any(fact["chosen"] for fact in report["speculation"])


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ("draft", "--speculate draft: the method draft needs a model"),
        ("draft:/no/such/model", "/no/such/model"),
        ("ngram:model", "the method ngram takes no checkpoint"),
    ],
)
def test_what_the_chosen_method_lacks(chosen: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--platform", "sim", "--json", "--speculate", chosen]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["usable"]
    assert sum(said in remedy for remedy in report["remedies"]) == 1
    (fact,) = (fact for fact in report["speculation"] if fact["chosen"])
    assert said in fact["problem"]


@pytest.mark.parametrize("chosen", ["draft:smollm2", "draft:org/name"])
def test_a_model_that_can_be_fetched_is_no_fault(chosen: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--platform", "sim", "--speculate", chosen]) == 0
    assert " *draft       built in: needs a smaller model of the same vocabulary" in capsys.readouterr().out


def test_methods_of_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    remedies: list[str] = []
    table = {"mill": "plugin_with_drafters:Mill", "broken": "plugin_with_drafters:Missing"}
    facts = speculation_facts(plugins(monkeypatch, table), "mill", remedies)
    found = {fact["name"]: fact for fact in facts}
    assert found["mill"]["by"] == found["broken"]["by"] == "plugin mills"
    assert found["mill"]["problem"] is None
    assert found["mill"]["chosen"]
    assert "'plugin_with_drafters:Missing' cannot be loaded" in found["broken"]["problem"]
    assert len(remedies) == 1
    assert found["broken"]["problem"] in remedies[0]
    add_depths(facts, None)
    lines = list(speculation_lines(facts))
    assert " *mill        plugin mills: needs nothing else; depth 1 (drafts are made between two steps)" in lines
    assert any(line.startswith("  broken      plugin mills: unusable: ") for line in lines)


def test_a_plugin_whose_hook_fails_hides_no_other_method(monkeypatch: pytest.MonkeyPatch) -> None:
    remedies: list[str] = []
    facts = speculation_facts(plugins(monkeypatch, 5), None, remedies)
    assert [fact["name"] for fact in facts] == sorted(NEEDS)
    assert "hook headrace_drafters failed" in remedies[0]


def test_a_heads_size_is_shown_as_stored_and_in_int8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {"fc.weight": torch.zeros(1000, 500), "embed_tokens.weight": torch.zeros(10, 500)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    assert main(["doctor", "--platform", "sim", "--speculate", f"eagle3:{tmp_path}"]) == 0
    assert "(weights of 2.0 MB, 0.5 MB in int8)" in capsys.readouterr().out


def test_a_block_drafter_is_described(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    layers = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 8}
    own = {"block_size": 4, "target_layer_ids": [1, 9], "mask_token_id": 3, "markov_rank": 8}
    config = {**layers, **own, "vocab_size": 99, "architectures": ["Qwen3DSparkModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["doctor", "--platform", "sim", "--speculate", f"dspark:{tmp_path}"]) == 0
    said = capsys.readouterr().out
    assert "(4 tokens a block, 2 layers, a vanilla Markov head, estimates of its acceptance; reads" in said
    assert "after layers 2, 10 of the model)" in said
    assert main(["doctor", "--platform", "sim", "--speculate", f"dflash:{tmp_path}"]) == 1
    assert f"write dspark:{tmp_path}" in capsys.readouterr().out


DEVICE = "depth 2 (the device makes the drafts, except those of predictions)"
HOST = "depth 1 (drafts are made between two steps"
MARKOV = {"markov_rank": 8, "projector_type": "dspark"}
SELECTOR = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 16}


@pytest.mark.parametrize(
    ("name", "own", "mask", "depth"),
    [
        ("DFlashDraftModel", {}, 3, DEVICE),
        ("DFlashDraftModel", {}, None, DEVICE),
        ("DFlash2DraftModel", SELECTOR, 3, f"{HOST}: a selector chooses tokens of a block in pairs)"),
        ("DSparkDraftModel", MARKOV, 3, DEVICE),
        ("DSparkDraftModel", {**MARKOV, "markov_rank": 0}, 3, DEVICE),
        ("DSparkDraftModel", {**MARKOV, "markov_head_type": "rnn"}, 3, f"{HOST}: a Markov head of kind rnn corrects"),
        ("DSparkDraftModel", {**MARKOV, "draft_topk": 9}, 3, f"{HOST}: only the 9 likeliest tokens of each place"),
    ],
)
def test_the_depth_of_a_block_drafter_follows_from_its_checkpoint(
    name: str,
    own: dict[str, Any],
    mask: int | None,
    depth: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    layers = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 8}
    settings = {"block_size": 4, "target_layer_ids": [1, 9], "mask_token_id": mask, **own}
    config = {**layers, "vocab_size": 99, "architectures": [name], "block_size": 4, "dflash_config": settings}
    (tmp_path / "config.json").write_text(json.dumps(config))
    method = "dspark" if name.startswith("DSpark") else "dflash"
    assert main(["doctor", "--platform", "cpu", "--speculate", f"{method}:{tmp_path}"]) == 0
    assert depth in capsys.readouterr().out


def test_a_device_without_an_operator_of_the_draws(tmp_path: Path) -> None:
    """The engine asks for the same."""
    layers = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 8}
    own = {
        "speculators_model_type": "dspark",
        "markov_rank": 8,
        "aux_hidden_state_layer_ids": [1],
        "draft_vocab_size": 9,
    }
    config = {"transformer_layer_config": {**layers, "vocab_size": 99}, "block_size": 4, "mask_token_id": 3, **own}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for missing, depth, why in (
        ("shift", 1, "drafts are made between two steps: the device lacks shift"),
        ("widen_logits", 1, "drafts are made between two steps: the device lacks widen_logits"),
        ("correct_logits", 1, "drafts are made between two steps: the device lacks correct_logits"),
        ("", 2, "the device makes the drafts, except those of predictions"),
    ):
        forms = {spec.name: "own" if spec.name != missing else "missing" for spec in OPTIONAL}
        optional = [{"name": name, "implementation": form} for name, form in forms.items()]
        facts = [{"name": "dspark", "chosen": True, "problem": None}]
        add_depths(facts, {"optional": optional}, f"dspark:{tmp_path}")
        assert (facts[0]["depth"], facts[0]["why"]) == (depth, why)


def test_a_pipeline_leaves_drafts_to_the_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["doctor", "--platform", "cpu", "--pipeline-parallel-size", "2", "--speculate"]
    assert main([*given, "ngram"]) == 0
    why = "drafts are made between two steps: a sequence is in one step of a pipeline at a time"
    assert f" *ngram       built in: needs nothing else; depth 1 ({why})" in capsys.readouterr().out
    assert main([*given, "mtp"]) == 1
    assert "what mtp drafts with reads a model that is whole on one rank" in capsys.readouterr().out
