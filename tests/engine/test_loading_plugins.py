"""A third party's model family, quantization scheme and weight files, offered by the hooks of a tiny plugin."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_harness import logits_of, reference_ops
from safetensors.torch import load_file, save_file
from tiny_models import prompt, save

from headrace import LLM, SamplingParams
from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.checkpoints.extensions import Extensions
from headrace.errors import PluginError, UnsupportedModel
from headrace.plugins import GROUP, PluginSet, discover

PLUGIN = '''
import dataclasses
import numpy as np, pluggy, torch
from headrace.kernels.weight import Weight
from headrace.models.llama import LLAMA
from headrace.quant.weights import dense

hookimpl = pluggy.HookimplMarker("headrace")
MILL = dataclasses.replace(LLAMA, name="mill")
NOT_A_FAMILY = object()

@hookimpl
def headrace_models():
    return {"MillForCausalLM": "mill_plugin:MILL", "Wrong": "mill_plugin:NOT_A_FAMILY", "Lost": "mill_plugin:missing"}

@hookimpl
def headrace_quant_schemes():
    return {"halves": "mill_plugin:Halves", "constant": "mill_plugin:NOT_A_FAMILY"}

@hookimpl
def headrace_weight_loaders():
    return {".npz": "mill_plugin:Archive"}

class Halves:
    """Every matrix stored divided by `factor`."""
    def __init__(self, config):
        self.factor = config["factor"]
    def covers(self, module, reader):
        return "proj" in module
    def load(self, module, shape, reader):
        name = f"{module}.weight"
        codes = reader.get(name)
        return Weight("halves", shape, {"codes": codes}, lambda weight: weight.tensors["codes"] * self.factor)

class Archive:
    """Tensors of one numpy archive."""
    def __init__(self, directory):
        (path,) = directory.glob("*.npz")
        self.held, self.used = dict(np.load(path)), set()
    @property
    def names(self):
        return self.held.keys()
    def matrix(self, name, rows, columns, bias):
        weight = dense(self._take(f"{name}.weight"), name)
        weight.bias = self.vector(f"{name}.bias", rows) if bias else None
        return weight
    def experts(self, name, count, rows, columns):
        return [self.matrix(name.format(e=e), rows, columns, False) for e in range(count)]
    def vector(self, name, size):
        return self._take(name)
    def _take(self, name):
        self.used.add(name)
        return torch.from_numpy(self.held[name])
'''
IDS = prompt(12)
Rewrite = Callable[[Path], None]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution on the path: a module and the entry point that names it."""
    site = tmp_path / "site"
    meta = site / "headrace_mill-1.0.dist-info"
    meta.mkdir(parents=True)
    (site / "mill_plugin.py").write_text(PLUGIN)
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: headrace-mill\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text(f"[{GROUP}]\nmill = mill_plugin\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "mill_plugin", raising=False)
    return tmp_path


def configure(directory: Path, **fields: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def as_family(directory: Path) -> None:
    configure(directory, architectures=["MillForCausalLM"])


def as_halves(directory: Path) -> None:
    configure(directory, quantization_config={"quant_method": "halves", "factor": 4.0})
    tensors = load_file(directory / "model.safetensors")
    save_file({k: v / 4 if "proj" in k else v for k, v in tensors.items()}, directory / "model.safetensors")


def as_archive(directory: Path) -> None:
    path = directory / "model.safetensors"
    arrays: Mapping[str, Any] = {k: v.numpy() for k, v in load_file(path).items()}
    np.savez(directory / "weights.npz", **arrays)
    path.unlink()


@pytest.mark.parametrize("rewrite", [as_family, as_halves, as_archive])
def test_a_plugins_checkpoint_loads_like_a_built_in_one(installed: Path, rewrite: Rewrite) -> None:
    directory = installed / "model"
    save("llama", directory)
    wanted = logits_of(open_checkpoint(directory).build(reference_ops(), 64), IDS)
    rewrite(directory)
    checkpoint = open_checkpoint(directory)
    assert checkpoint.total_bytes > 0
    assert checkpoint.facts().weight_dtype == ("quantized" if rewrite is as_halves else "float32")
    found = logits_of(checkpoint.build(reference_ops(), 64), IDS)
    assert torch.allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("rewrite", [as_family, as_halves, as_archive])
def test_without_the_plugin_it_is_refused_by_name(tmp_path: Path, rewrite: Rewrite) -> None:
    save("llama", tmp_path / "model")
    rewrite(tmp_path / "model")
    with pytest.raises(UnsupportedModel, match=r"MillForCausalLM.*no plugin|halves.*no plugin|no model\.safetensors"):
        open_checkpoint(tmp_path / "model", Extensions(lambda: discover([])))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"architectures": ["Wrong"]}, r"'Wrong' is .*expected a models\.family\.Family"),
        ({"architectures": ["Lost"]}, r"'mill' .*headrace-mill 1\.0.*'Lost': 'mill_plugin:missing' cannot be loaded"),
        ({"quantization_config": {"quant_method": "constant"}}, "'constant' is .*expected something to call"),
    ],
)
def test_a_faulty_plugin_is_named(installed: Path, fields: dict[str, Any], said: str) -> None:
    save("llama", installed / "model")
    configure(installed / "model", **fields)
    with pytest.raises(PluginError, match=said):
        open_checkpoint(installed / "model")


def test_a_plugin_that_failed_to_load_may_have_been_the_one(tmp_path: Path) -> None:
    save("llama", tmp_path / "model")
    configure(tmp_path / "model", architectures=["Elsewhere"])
    broken = EntryPoint("broken", "no_such_module_here", GROUP)
    with pytest.raises(PluginError, match=r"broken.*it may provide 'Elsewhere'"):
        open_checkpoint(tmp_path / "model", Extensions(lambda: discover([broken])))


def test_a_built_in_model_loads_no_plugin(tmp_path: Path) -> None:
    def never() -> PluginSet:
        raise AssertionError("plugins were discovered")

    save("llama", tmp_path / "model")
    open_checkpoint(tmp_path / "model", Extensions(never)).build(reference_ops(), 16)


def test_the_engine_serves_a_plugins_family(installed: Path, tiny_llama: Path) -> None:
    def answer(name: str, *rewrites: Rewrite) -> list[int]:
        directory = installed / name
        shutil.copytree(tiny_llama, directory)
        for rewrite in rewrites:
            rewrite(directory)
        params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
        with LLM(str(directory), platform="cpu", threads=1, num_blocks=50) as llm:
            return list(llm.generate("hello", params)[0].outputs[0].token_ids)

    assert answer("mill", as_family, as_archive) == answer("llama")
