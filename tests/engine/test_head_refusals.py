"""A draft head that does not fit its target is refused by name before anything is served."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_harness import config_of
from plain_heads import VOCAB, add_mtp, save_eagle3
from safetensors.torch import load_file, save_file
from test_draft_heads import save_target

from headrace.engine.startup import build_engine
from headrace.errors import HeadraceError


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    save_target(path)
    return path


def refusal(target: Path, speculate: str) -> str:
    with pytest.raises(HeadraceError) as caught:
        build_engine(config_of(target, speculate=speculate), lambda stage, done: None).close()
    return str(caught.value)


def setting(**changes: Any) -> Callable[[Path], None]:
    def apply(head: Path) -> None:
        config = json.loads((head / "config.json").read_text())
        (head / "config.json").write_text(json.dumps({**config, **changes}))

    return apply


def tensor(name: str, change: Callable[[torch.Tensor | None], torch.Tensor | None]) -> Callable[[Path], None]:
    def apply(head: Path) -> None:
        stored = load_file(head / "model.safetensors")
        found = change(stored.pop(name, None))
        if found is not None:
            stored[name] = found
        save_file(stored, head / "model.safetensors")

    return apply


def far(d2t: torch.Tensor | None) -> torch.Tensor:
    assert d2t is not None
    return d2t + VOCAB


CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "vocabulary": (setting(vocab_size=128256), "vocab_size is 128256, and the target's is 260"),
    "hidden": (setting(target_hidden_size=4096), "target_hidden_size is 4096, and the target's hidden_size is 64"),
    "layers": (
        setting(eagle_aux_hidden_state_layer_ids=[1, 2, 9]),
        r"'eagle_aux_hidden_state_layer_ids' is \[1, 2, 9\]: the target has layers 0 to 2",
    ),
    "number of layers": (setting(eagle_aux_hidden_state_layer_ids=[1, 2]), r"fc.weight.*\[64, 192\].*\[64, 128\]"),
    "one layer": (setting(eagle_config={"use_aux_hidden_state": False}), "use_aux_hidden_state false"),
    "norm": (setting(norm_before_fc=True), "norm_before_fc true is not supported"),
    "method": (setting(speculators_model_type="peagle"), "speculators_model_type 'peagle': expected eagle3"),
    "draft vocabulary": (setting(draft_vocab_size=80), r"\[150, 64\].*\[80, 64\]"),
    "d2t outside": (tensor("d2t", far), "d2t.*gives tokens from .* below the target's vocab_size 260"),
    "d2t floats": (tensor("d2t", lambda old: torch.zeros(150)), "d2t.*expected 150 integers"),
    "d2t falls": (tensor("d2t", lambda old: torch.arange(149, -1, -1) - torch.arange(150)), "not ascending"),
    "unknown": (tensor("gate.weight", lambda old: torch.ones(3)), "1 tensors of the draft head are unknown: gate.w"),
    "missing": (tensor("midlayer.mlp.up_proj.weight", lambda old: None), "midlayer.mlp.up_proj.weight.*is missing"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit_is_named(target: Path, case: str, tmp_path: Path) -> None:
    change, wanted = CASES[case]
    save_eagle3(tmp_path / "head", "A")
    change(tmp_path / "head")
    found = refusal(target, f"eagle3:{tmp_path / 'head'}")
    assert re.search(wanted, found), found


def test_a_pickle_is_refused_with_the_remedy(target: Path, tmp_path: Path) -> None:
    save_eagle3(tmp_path / "head", "A")
    (tmp_path / "head" / "model.safetensors").rename(tmp_path / "head" / "pytorch_model.bin")
    found = refusal(target, f"eagle3:{tmp_path / 'head'}")
    assert "pytorch_model.bin is not read" in found
    assert "safetensors.torch.save_file" in found


def test_a_directory_without_a_head_is_named(target: Path, tmp_path: Path) -> None:
    assert f"{tmp_path}: no directory of a draft head" in refusal(target, f"eagle3:{tmp_path}")


def test_a_target_without_a_head_names_what_it_would_be(target: Path) -> None:
    found = refusal(target, "mtp")
    assert "no head for multi-token prediction (model.layers.3.eh_proj.weight, mtp.fc.weight" in found


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "num_hidden_layers"])
def test_a_mtp_head_of_another_target_is_refused(target: Path, key: str, tmp_path: Path) -> None:
    shutil.copytree(target, tmp_path / "head")
    add_mtp(tmp_path / "head", "deepseek")
    setting(**{key: 77})(tmp_path / "head")
    assert f"{key} is 77, and the target's is" in refusal(target, f"mtp:{tmp_path / 'head'}")


def test_an_unknown_tensor_of_a_mtp_head_is_refused(tmp_path: Path) -> None:
    save_target(tmp_path)
    add_mtp(tmp_path, "deepseek")
    tensor("model.layers.3.self_attn.gate.weight", lambda old: torch.ones(3))(tmp_path)
    assert "unknown: model.layers.3.self_attn.gate.weight" in refusal(tmp_path, "mtp")
