"""The backend of another distribution: installed with pip, found by entry point, chosen by name, run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import json, sys
import numpy as np, torch
from headrace.kernels.registry import OPS, binding
from headrace.plugins import discover
plugins = discover()
found = next(p for p in plugins.plugins if p.name == "example")
platform, reason = plugins.select_platform("example")
loaded = "headrace_example.device" in sys.modules
device = platform.open(0, {"threads": 1})
bound = binding(device)
errors = {}
for spec in OPS:
    if bound.tags[spec.name] != "reference":
        given = spec.generate(np.random.default_rng(1), torch.device("cpu"), "float32")
        got, expected = bound.callables[spec.name](**given), spec.reference(**given)
        errors[spec.name] = float((got - expected).square().mean() / expected.square().mean()) <= spec.tolerance["float32"]
step = device.compile(lambda kv, inputs: (kv, {"y": bound.rms_norm(**inputs)}), None)
ones = device.put(np.ones((1, 4), np.float32))
out = device.get(step(None, {"x": ones, "weight": ones[0], "eps": torch.tensor(0.0).item()})[1]["y"]).result()
print(json.dumps([found.distribution, found.version, reason, loaded, bound.tags["rms_norm"], errors, out.tolist()]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The example, installed into a folder of its own."""
    base = tmp_path_factory.mktemp("example")
    source = base / "source"
    shutil.copytree(request.config.rootpath / "examples" / "backend_plugin", source)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["--disable-pip-version-check", "--target", str(base / "site"), str(source)]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    return base / "site"


def test_it_installs_is_found_and_runs(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site))
    done = subprocess.run([sys.executable, "-c", RUN], check=False, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    distribution, version, reason, loaded, tag, errors, out = json.loads(done.stdout)
    assert (distribution, version) == ("headrace-example", "0.1.0")
    assert reason.startswith("example: asked for by name")
    assert not loaded
    assert tag == "example"
    assert errors == {"rms_norm": True}
    assert out == [[1, 1, 1, 1]]


SERVE = """
import json, sys, tempfile
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from server_harness import make_model
from headrace import LLM, SamplingParams
model = Path(tempfile.mkdtemp(dir=sys.argv[2]))
make_model(model)
params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
answers = []
for platform in ("example", "cpu"):
    with LLM(str(model), platform=platform, threads=1, dtype="float32", num_blocks=40, max_num_seqs=4) as llm:
        answers.append([one.outputs[0].token_ids for one in llm.generate(["Hello", "a longer prompt of several blocks"], params)])
print(json.dumps(answers))
"""


def test_it_serves_the_same_tokens_as_the_cpu(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site))
    command = [sys.executable, "-c", SERVE, str(request.config.rootpath / "tests" / "engine"), str(tmp_path)]
    done = subprocess.run(command, check=False, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    example, cpu = json.loads(done.stdout.splitlines()[-1])
    assert example == cpu
    assert [len(ids) for ids in example] == [12, 12]
