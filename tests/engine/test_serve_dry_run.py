"""`headrace serve --dry-run`: what it prints, what it refuses, and that it loads nothing."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import format_models
import pytest
from moe_models import save_moe

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.cli.command_options import build_config
from headrace.cli.main import main
from headrace.cli.serve_plan import show_serve_plan
from headrace.engine.dry_run import plan_engine
from headrace.errors import UnsupportedModel
from headrace.options import ENGINE, SERVER, make_config
from headrace.platforms.cpu.device import CpuDevice
from headrace.platforms.cpu.native_device import NativeDevice
from headrace.types import COLLECTIVES

Plan = Callable[..., tuple[int, str]]
TLS = Path(__file__).parents[1] / "data" / "tls"


@pytest.fixture
def plan(tiny_llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Plan:
    def unread(*arguments: object, **named: object) -> None:
        raise AssertionError("weights are loaded")

    monkeypatch.setattr(Checkpoint, "build", unread)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))

    def run(*options: str, model: str | None = None) -> tuple[int, str]:
        import argparse

        from headrace.arguments import add_engine_options, add_server_options

        parser = argparse.ArgumentParser()
        parser.add_argument("model")
        add_engine_options(parser)
        add_server_options(parser)
        given = ["--platform", "cpu", "--threads", "1", "--port", "0", *options]
        code = show_serve_plan(build_config(parser.parse_args([model or str(tiny_llama), *given])))
        return code, capsys.readouterr().out

    return run


def test_what_would_happen(plan: Plan, tiny_llama: Path) -> None:
    code, text = plan("--kv-memory", "1MiB", "--api-key", "sk-secret", "--max-num-seqs", "4")
    assert code == 0
    lines = text.splitlines()
    assert f"  {tiny_llama}: " in text
    for part in ("model", "platform", "choices", "memory", "answers", "server", "options"):
        assert part in lines
    assert lines[-1] == "This would serve."
    shown = {line.split()[0]: line.split()[1:] for line in lines[lines.index("options") + 1 : -1]}
    assert set(shown) == {option.name for option in (*ENGINE.values(), *SERVER.values())}
    assert shown["max_num_seqs"] == ["4", "given"]
    assert shown["block_size"][1] == "chosen"
    assert shown["dtype"][1] == "chosen"
    assert shown["kv_memory"] == [str(1 << 20), "given"]
    assert shown["host"] == ["127.0.0.1", "default"]
    assert "dtype float32" in text or "dtype bfloat16" in text
    assert "sk-secret" not in text


def test_every_fault_is_named_at_once(plan: Plan, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: []")
    code, text = plan("--block-size", "17", "--tool-format", "morse", "--api-keys-file", str(keys))
    assert code == 2
    faults = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(faults) == 3
    assert "block_size 17" in faults[0]
    assert "tool_format 'morse'" in faults[1]
    assert "has none" in faults[2]
    assert text.endswith("This would fail.\n")


def test_a_drafters_fault_is_named_with_the_others(plan: Plan) -> None:
    code, text = plan(*"--speculate draft:/nowhere --max-model-len 100000 --draft-quantization int8".split())
    assert code == 2
    first, second = [line for line in text.splitlines() if line.startswith("error: ")]
    assert "model '/nowhere' is no such path" in first
    assert "max_model_len 100000 exceeds" in second


def test_faults_of_the_server_are_named_together(plan: Plan) -> None:
    code, text = plan(*"--host 203.0.113.1 --ssl-certfile /nowhere.pem --state-dir /dev/null/here".split())
    assert code == 2
    faults = [line for line in text.splitlines() if line.startswith("error: ")]
    named = ("cannot listen on 203.0.113.1", "--ssl-certfile: /nowhere.pem", "--state-dir: /dev/null/here")
    assert len(faults) == 3
    assert all(part in fault for part, fault in zip(named, faults, strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--max-model-len 100000", "max_model_len 100000 exceeds"),
        ("--num-blocks 900000000", "weights and KV cache need"),
        ("--speculate nothing", "nothing"),
        ("--speculate draft:/nowhere", "model '/nowhere' is no such path"),
        ("--grammar-backend nothing", "nothing"),
        ("--ssl-certfile /nowhere.pem", "--ssl-certfile: /nowhere.pem cannot be read"),
        ("--state-dir /dev/null/here", "--state-dir: /dev/null/here cannot be used"),
        ("--host 203.0.113.1", "cannot listen on 203.0.113.1"),
    ],
)
def test_what_would_fail(plan: Plan, options: str, message: str) -> None:
    code, text = plan(*options.split())
    (fault,) = [line for line in text.splitlines() if line.startswith("error: ")]
    assert code == 2
    assert message in fault


@pytest.mark.parametrize(
    ("options", "lacks", "message"),
    [
        (
            "--expert-parallel",
            {"collectives": COLLECTIVES},
            "expert_parallel with tensor_parallel_size 2: platform cpu",
        ),
        ("", {"collectives": frozenset()}, "tensor_parallel_size 2: platform cpu has no all_gather and no all_reduce"),
        (
            "--pipeline-parallel-size 2",
            {"passes_rows": False},
            "pipeline_parallel_size 2: platform cpu passes no hidden",
        ),
    ],
)
def test_a_platform_that_lacks_what_ranks_need(
    plan: Plan,
    options: str,
    lacks: dict[str, Any],
    message: str,
    tiny_llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says so alone, before the other ranks are started."""
    save_moe("qwen3_moe", tmp_path / "moe", vocab_size=260)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "moe" / name).write_bytes((tiny_llama / name).read_bytes())
    given = (*options.split(), "--tensor-parallel-size", "2")
    code, text = plan(*given, model=str(tmp_path / "moe"))
    assert code == 0, text
    for kind in (NativeDevice, CpuDevice):
        able = kind.as_one_of_several(cast(Any, None))
        monkeypatch.setattr(kind, "as_one_of_several", lambda self, able=able: replace(able, **lacks))
    code, text = plan(*given, model=str(tmp_path / "moe"))
    (fault,) = [line for line in text.splitlines() if line.startswith("error: ")]
    assert code == 2
    assert message in fault


def test_a_disk_that_keeps_nothing_is_a_warning(plan: Plan, tmp_path: Path) -> None:
    code, text = plan("--kv-disk", "/dev/null/here:1GiB")
    assert code == 0, "serving would go on without it"
    (warning,) = [line for line in text.splitlines() if line.startswith("warning: ")]
    assert "--kv-disk: /dev/null/here cannot be used" in warning
    code, text = plan("--kv-disk", f"{tmp_path / 'kv'}:1GiB")
    assert f"keeps KV blocks in {tmp_path / 'kv'}, up to 1.00 GiB" in text
    assert "warning" not in text
    assert not (tmp_path / "kv").exists()


def test_a_port_that_is_taken(plan: Plan) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, text = plan("--port", str(taken.getsockname()[1]))
    assert code == 2
    assert "cannot listen on" in text


def test_the_servers_part(plan: Plan, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{name: alice, key: sk-private}]")
    path = tmp_path / "s"
    options = ("--ssl-certfile", TLS / "cert.pem", "--ssl-keyfile", TLS / "key.pem", "--api-keys-file", keys)
    code, text = plan(*map(str, options), "--uds", str(path), "--tracing", "--state-dir", str(tmp_path / "state"))
    assert code == 0
    for line in (f"listens at unix:{path}", "keys of alice", "traces are sent", "certificate "):
        assert line in text
    assert "sk-private" not in text
    assert "no key is needed" not in text
    # Nothing is left behind.
    assert not path.exists()
    assert not (tmp_path / "state").exists()


def test_where_the_cache_is_published(plan: Plan) -> None:
    code, text = plan("--kv-memory", "1MiB", "--kv-events-endpoint", "nowhere")
    assert (code, "--kv-events-endpoint 'nowhere'" in text) == (2, True)
    code, text = plan("--kv-memory", "1MiB", "--kv-events-endpoint", "tcp://127.0.0.1:*")
    assert (code, "publishes the prefix cache's changes at tcp://127.0.0.1:*" in text) == (0, True)


@pytest.mark.parametrize("name", ["smollm2", "some-org/some-model"])
def test_a_model_that_is_not_here_is_not_fetched(plan: Plan, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.hub.catalogue.pull", None)
    monkeypatch.setattr("headrace.hub.catalogue.fetch_repository", None)
    code, text = plan(model=name)
    assert code == 2
    assert f"{name} is not on this machine: `headrace pull {name}` fetches it" in text


def test_two_ranks_share_the_hosts_memory(plan: Plan) -> None:
    code, text = plan("--tensor-parallel-size", "2", "--kv-memory", "1MiB")
    assert code == 0, text
    assert "2 ranks, each with its part of every layer" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--role prefill --kv-listen 0.0.0.0:0", "set a secret that the engines share"),
        ("--role both --kv-connector foo", "there is no connector 'foo'"),
        ("--role both --kv-secret-file /nowhere", "kv_secret_file /nowhere cannot be read"),
        ("--kv-host-memory 1GiB", "kv_host_memory: platform cpu computes in the host's memory"),
    ],
)
def test_tiers_and_peers_are_tried(plan: Plan, options: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_KV_SECRET", raising=False)
    code, text = plan(*options.split())
    assert code == 2
    assert message in text


def test_what_other_engines_reach_is_given_back(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    code, text = plan("--role", "both", "--kv-connector", "shm", "--kv-listen", str(path), "--kv-shelf", "1MiB")
    assert code == 0, text
    assert not path.exists()


def test_a_connector_without_its_library(plan: Plan) -> None:
    if importlib.util.find_spec("nixl") is not None:
        pytest.skip("nixl is installed")
    code, text = plan("--role", "both", "--kv-connector", "nixl")
    assert code == 2
    assert "pip install 'headrace[nixl]'" in text


@pytest.mark.parametrize(("name", "scheme"), [("Q4_1", "gguf:q4_1"), ("gptq", "int4")])
def test_a_quantised_checkpoint_is_not_quantised(name: str, scheme: str, tmp_path: Path) -> None:
    path, _ = format_models.make(name, tmp_path)
    given = {"platform": "cpu", "threads": 1, "kv_memory": "1MiB"}
    plan_engine(make_config(str(path), given))
    with pytest.raises(UnsupportedModel, match=f"is stored as {scheme}: leave --quantize out"):
        plan_engine(make_config(str(path), {**given, "quantize": "int8"}))


@pytest.mark.parametrize(("method", "depth"), [("ngram", 2), ("suffix", 1)])
def test_what_drafts_is_named(method: str, depth: int, tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["serve", str(tiny_llama), "--dry-run", "--platform", "cpu", "--threads", "1", "--speculate", method])
    assert f"  drafts by {method}, depth {depth}: " in capsys.readouterr().out
