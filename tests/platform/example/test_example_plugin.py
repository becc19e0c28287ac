"""The backend of another distribution: built by pip, found by entry point, chosen by name, and served."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from example_harness import Run

pytestmark = pytest.mark.slow

FOUND = """
import json, sys
from headrace.plugins import discover
plugins = discover()
found = next(p for p in plugins.plugins if p.name == "example")
platform, reason = plugins.select_platform("example")
loaded = [m for m in ("torch", "headrace_example.device", "headrace_example.runtime") if m in sys.modules]
from headrace.kernels.registry import binding
tags = binding(platform.open(0, {"threads": 1})).tags
print(json.dumps([found.distribution, found.version, reason, loaded, tags, [d.index for d in platform.devices()]]))
"""


def out(done: subprocess.CompletedProcess[str]) -> object:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_it_is_found_and_loads_nothing_before_it_is_opened(python: Run) -> None:
    distribution, version, reason, loaded, tags, indices = out(python("-c", FOUND))
    assert (distribution, version) == ("headrace-example", "0.1.0")
    assert reason.startswith("example: asked for by name")
    assert loaded == []
    assert indices == [0, 1]
    own = {name: tag for name, tag in tags.items() if tag != "reference"}
    assert own == {"rms_norm": "example", "linear": "example-c++"}


DEVICE = """
import json, sys, torch
from headrace.plugins import discover
platform, _ = discover().select_platform("example")
first, second = (platform.open(index, {}) for index in (0, 1))
x = torch.arange(6.0).view(2, 3)
a, b = x.to("example:0"), x.to("example:1")
own = torch.ops.headrace_example.matmul
mine = torch.library.Library("mine", "DEF")
mine.define("double(Tensor x) -> Tensor")
mine.impl("double", lambda x: 2 * x, "CPU")
free = second.memory()[0]
block = torch.zeros(1 << 20, device="example:1")
grown = free - second.memory()[0]
del block

def fault(work):
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

torch.accelerator.set_device_index(1)
print(json.dumps({
    "devices": [
        str(t.device) for t in (a, b, a + a, b @ b.t(), torch.nn.Parameter(b), torch.empty(1, device="example"))
    ],
    "accelerator": [str(torch.accelerator.current_accelerator()), torch.accelerator.device_count()],
    "values": [(a + a).cpu().tolist(), b.to("example:0").cpu().tolist(), own(b, b).cpu().tolist(), b[1, 2].item()],
    "grown": [grown, free - second.memory()[0]],
    "faults": {
        "two devices": fault(lambda: torch.mm(a, b.t())),
        "device and host": fault(lambda: torch.mm(a, x.t())),
        "own on two": fault(lambda: own(a, b)),
        "own on the host": fault(lambda: own(x, x)),
        "shapes": fault(lambda: own(a, a.t())),
        "dtype": fault(lambda: own(a.double(), a.double())),
        "host's operator": fault(lambda: torch.ops.mine.double(a)),
        "no such device": fault(lambda: torch.empty(1, device="example:2")),
        "memory": fault(lambda: torch.empty(1 << 30, device="example:1")),
        "no array": fault(lambda: a.numpy()),
        "index": fault(lambda: platform.open(2, {})),
        "option": fault(lambda: platform.open(0, {"colour": 1})),
        "arithmetic": fault(lambda: platform.open(0, {"dtype": "float16"})),
    },
}))
"""
FAULTS = {
    "two devices": "RuntimeError: aten::mm: tensors on example:0 and on example:1",
    "device and host": "RuntimeError: aten::mm: tensors on example:0 and on cpu",
    "own on two": "RuntimeError: example: matmul across example:0 and example:1",
    "own on the host": "NotImplementedError: Could not run 'headrace_example::matmul'",
    "shapes": "RuntimeError: example: matmul of [2, 3] by [3, 2]",
    "dtype": "RuntimeError: example: matmul takes float32",
    "host's operator": "NotImplementedError: mine::double has no kernel for the device `example`",
    "no such device": "RuntimeError: example: there are devices 0 and 1, but 2 was asked for",
    "memory": "OutOfMemoryError: example: out of memory: 4294967296 bytes were asked for",
    "no array": "TypeError: can't convert example:0",
    "index": "PlatformError: example: there are devices 0 to 1, but 2 was asked for",
    "option": "PlatformError: example: unknown option 'colour'; there are threads, dtype, rank, world_size, rendezvous",
    "arithmetic": "PlatformError: example: dtype 'float16': there is float32 alone",
}


def test_it_is_a_device_of_its_own(python: Run) -> None:
    said = out(python("-c", DEVICE))
    assert said["devices"] == ["example:0", "example:1", "example:0", "example:1", "example:1", "example:1"]
    assert said["accelerator"] == ["example", 2]
    x = [[0, 1, 2], [3, 4, 5]]
    assert said["values"] == [[[0, 2, 4], [6, 8, 10]], x, [[5, 14], [14, 50]], 5]
    assert said["grown"] == [1 << 22, 0]
    for name, beginning in FAULTS.items():
        assert (said["faults"][name] or "no error").startswith(beginning), name


MATMUL = """
import json, sys, torch
from headrace.plugins import discover
discover().select_platform("example")[0].open(0, {})
torch.manual_seed(3)
worst, alone = 0.0, True
sizes = [(0, 3, 5), (1, 1, 1), (2, 7, 15), (3, 5, 16), (4, 9, 17), (7, 33, 130), (2, 0, 4), (2, 3, 0)]
for rows, columns, inner in sizes:
    x, w = torch.randn(rows, inner), torch.randn(columns, inner)
    device = torch.ops.headrace_example.matmul(x.to("example"), w.to("example"))
    found = device.cpu().double()
    wanted = x.double() @ w.double().t()
    assert found.shape == wanted.shape
    worst = max(worst, float((found - wanted).square().sum() / wanted.square().sum().clamp(min=1e-30)))
    for i in range(rows):
        row = torch.ops.headrace_example.matmul(x[i:i + 1].to("example"), w.to("example"))
        alone = alone and torch.equal(row.cpu()[0], found[i].float())
print(json.dumps([worst, alone]))
"""


def test_its_kernel_is_right_for_all_shapes_and_each_row_stands_alone(python: Run) -> None:
    worst, alone = out(python("-c", MATMUL))
    assert worst < 1e-13
    assert alone is True


def test_the_kit_is_green(python: Run, tmp_path: Path) -> None:
    options = [
        "--json",
        str(tmp_path / "r.json"),
        "--junit",
        str(tmp_path / "r.xml"),
        "--badge",
        str(tmp_path / "badge"),
    ]
    done = python("-m", "headrace", "conformance", "example", "--option", "threads=1", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["ok"] is True
    passed, total = (tmp_path / "badge").read_text().removeprefix("contract 1.0: ").split(" of ")
    assert int(passed) == int(total) > 100
    skipped = {test["detail"] for test in report["tests"] if test["result"] == "skipped"}
    assert "determinism is not declared" in skipped
    assert {test["result"] for test in report["tests"] if test["tier"] == "collectives"} == {"passed"}
    known = ("determinism", "dtype", "the optional operator", "times of launches")
    assert [why for why in skipped if not why.startswith(known) or " not declared" not in why] == []
    assert "<testsuite" in (tmp_path / "r.xml").read_text()


SERVE = """
import json, sys
from headrace import LLM, SamplingParams
params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
answers = []
for platform, index, ranks in (("example", 0, 1), ("example", 1, 1), ("example", 0, 2), ("cpu", 0, 1)):
    options = {"dtype": "float32", "num_blocks": 40, "max_num_seqs": 4, "threads": 1, "tensor_parallel_size": ranks}
    with LLM(sys.argv[1], platform=platform, device_index=index, **options) as llm:
        outputs = llm.generate(["Hello", "a longer prompt of several blocks"], params)
        answers.append([one.outputs[0].token_ids for one in outputs])
print(json.dumps(answers))
"""


def test_both_devices_alone_and_together_serve_the_same_tokens_as_the_cpu(python: Run, tiny: Path) -> None:
    first, second, both, cpu = out(python("-c", SERVE, str(tiny)))
    assert first == second == both == cpu
    assert [len(ids) for ids in cpu] == [12, 12]


def test_without_its_library_it_says_what_to_do(python: Run, site: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from headrace_example import *; print(ExamplePlatform().probe())"
    )
    package = tmp_path / "headrace_example"
    package.mkdir()
    (package / "__init__.py").write_text((site / "headrace_example" / "__init__.py").read_text())
    done = python("-c", code, str(tmp_path))
    assert done.stdout.startswith("(0, '_device.so was not built: pip install --no-build-isolation"), done.stderr


def test_a_library_of_another_torch_is_an_error_that_tells_the_remedy(
    python: Run, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "headrace_example"
    package.mkdir()
    for source in (site / "headrace_example").glob("*.py"):
        (package / source.name).write_text(source.read_text())
    (package / "_device.so").write_bytes(b"not for this torch")
    code = "import sys; sys.path.insert(0, sys.argv[1]); from headrace_example import *; ExamplePlatform().open(0, {})"
    done = python("-c", code, str(tmp_path))
    last = done.stderr.splitlines()[-1]
    assert "PlatformError: example: " in last
    assert "cannot be used with torch" in last
    assert "--force-reinstall" in last


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"CXX": "no-such-compiler -O2"}, "no C++ compiler (no-such-compiler -O2)"),
        ({"PYTHONPATH": "."}, "no torch to build against"),
    ],
)
def test_what_the_build_lacks_is_told(
    example_source: Path, tmp_path: Path, environment: dict[str, str], words: str
) -> None:
    if "PYTHONPATH" in environment:
        (tmp_path / "torch.py").write_text("raise ImportError('hidden')")
        environment = {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "setup.py", "--version"]
    done = subprocess.run(
        command,
        cwd=example_source,
        env=os.environ | environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert f"headrace-example: {words}" in done.stderr
    assert "pip install --no-build-isolation" in done.stderr
    assert "Traceback" not in done.stderr
