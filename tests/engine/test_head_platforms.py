"""Draft heads on devices of every kind: by reference, with static shapes and donated buffers, with captured steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from draft_engine import speculate_always
from engine_harness import config_of
from fake_machines import VENDORS, machine, torch_folder
from fake_xla import FakeXla
from test_draft_heads import VOCAB, save_target_with_heads
from tiny_models import prompt as random_prompt

from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.engine.draft_depth import drafts_of
from headrace.engine.startup import Engine, build_on
from headrace.platforms.cpu.device import CpuDevice
from headrace.platforms.tpu import TpuPlatform
from headrace.types import Request, SamplingParams

METHODS = ("eagle3", "mtp")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target_with_heads(tmp_path_factory.mktemp("target"), "mimo")


def _tpu(root: Path, dtype: str, xla: FakeXla | None = None) -> Any:
    folder = torch_folder(root, "2.9.1")
    (folder.parent / "torch_xla").mkdir(exist_ok=True)
    (folder.parent / "torch_xla" / "version.py").write_text("__version__ = '2.9.0'\n")
    files = {
        "sys/bus/pci/devices/0000:00:04.0/vendor": "0x1ae0",
        "sys/bus/pci/devices/0000:00:04.0/device": "0x0063",
        "dev/vfio/0": "",
    }
    return TpuPlatform(machine(root, files, folder), (xla or FakeXla()).runtime).open(
        0, {"kernels": "xla", "dtype": dtype}
    )


@pytest.fixture(params=["reference", "static", "static in bfloat16", "captured"])
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "reference":
        made: Any = CpuDevice(threads=1)
    elif request.param.startswith("static"):
        made = _tpu(tmp_path, "bfloat16" if request.param != "static" else "float32")
    else:
        made = VENDORS[0].open(tmp_path)[0].open(0, {})
    yield made
    made.close()


@pytest.fixture(scope="module")
def plain() -> dict[str, list[dict[str, list[int]]]]:
    """Answers without drafts, by the kind of device."""
    return {}


def requests() -> list[Request]:
    """Some begin alike, so that the second round has cached prefixes."""
    shared = random_prompt(20, VOCAB)
    ways = [{"temperature": 0.0}, {"temperature": 0.9, "seed": 3, "top_p": 0.9}, {"temperature": 0.0, "min_tokens": 3}]
    return [
        Request(
            f"r{at}",
            (*shared, *random_prompt(2 + 9 * at, VOCAB)),
            SamplingParams(max_tokens=10, ignore_eos=True, **ways[at % len(ways)]),
        )
        for at in range(4)
    ]


def serve(engine: Engine, work: Sequence[Request]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {request.id: [] for request in work}
    engine.core.add(work)
    while engine.core.has_work():
        for delta in engine.core.step():
            assert delta.error is None
            found[delta.request_id] += delta.token_ids
    return found


def answers(device: Any, target: Path, speculate: str | None) -> tuple[list[dict[str, list[int]]], Engine]:
    config = config_of(target, chunk=24, seqs=3, blocks=60, speculate=speculate)
    config = config.model_copy(update={"cache": config.cache.model_copy(update={"block_size": None})})
    engine = build_on(device, "test", config, open_checkpoint(target), lambda stage, done: None)
    found = [serve(engine, requests()), serve(engine, requests())]
    engine.grammars.close()
    return found, engine


def fail_a_step(engine: Engine, xla: FakeXla) -> None:
    """A step of the target fails, and with it all buffers are lost that it and the drafter's passes take."""
    xla.failure = RuntimeError("INTERNAL: the program failed")
    engine.core.add([Request("victim", (1, 2, 3), SamplingParams(temperature=0.0, max_tokens=2))])
    deltas = [delta for _ in range(4) if engine.core.has_work() for delta in engine.core.step()]
    assert [delta.error is not None for delta in deltas] == [True]
    assert not engine.core.has_work()


def drafted(engine: Engine) -> int:
    return sum(sum(method.drafted) for method in engine.core.stats().speculation.methods)


@pytest.mark.parametrize("method", METHODS)
def test_answers_are_those_without_drafts(
    device: Any,
    method: str,
    target: Path,
    plain: dict[str, list[dict[str, list[int]]]],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speculate_always(monkeypatch, 2)
    kind = request.node.callspec.params["device"]
    if kind not in plain:
        plain[kind], _ = answers(device, target, None)
    speculate = f"eagle3:{target / 'head'}" if method == "eagle3" else method
    found, engine = answers(device, target, speculate)
    assert found == plain[kind]
    assert engine.head is not None
    assert engine.head.failures == 0
    overlap = drafts_of(config_of(target, speculate=speculate), device) > 0
    assert overlap != isinstance(device, CpuDevice)
    (totals,) = engine.core.stats().speculation.methods
    assert totals.method == method
    assert sum(totals.drafted) > 10
