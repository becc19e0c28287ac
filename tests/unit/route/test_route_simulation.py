"""The policy over simulated engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.errors import ConfigError
from headrace.route.simulation import POLICIES, SimSettings, simulate
from headrace.route.traces import Conversations, SimRequest, draw_conversations, read_trace

FEW = Conversations(count=150, rate=15.0, systems=12, seed=3)
SMALL = SimSettings(engines=12, slots=8, cache_tokens=12_000)


def test_the_same_seed_gives_the_same_numbers() -> None:
    one, two = (simulate("headrace", SMALL, FEW) for _ in range(2))
    assert one == two
    assert simulate("headrace", SMALL, Conversations(count=150, rate=15.0, systems=12, seed=4)) != one


def test_every_policy_serves_every_request() -> None:
    turns = sum(len(one.turns) for one in draw_conversations(FEW))
    for policy in POLICIES:
        out = simulate(policy, SMALL, FEW)
        assert out.requests == len(out.ttft) == turns
        assert 0 < out.cached_tokens < out.prompt_tokens
        assert out.seconds > 0


def test_knowing_the_caches_beats_taking_turns() -> None:
    blind, ours = simulate("round robin", SMALL, FEW), simulate("headrace", SMALL, FEW)
    assert ours.hit_rate > 1.3 * blind.hit_rate
    assert sum(ours.ttft) < sum(blind.ttft)
    assert ours.cached_tokens == ours.expected_tokens, "the index knows exactly what is cached"


def test_one_hot_prefix_does_not_overload_its_engine() -> None:
    hot = Conversations(count=200, rate=100.0, turns=1, systems=1, system_tokens=800, seed=1)
    spread, ours = simulate("least loaded", SMALL, hot), simulate("headrace", SMALL, hot)
    assert ours.percentile(0.99) <= 1.5 * spread.percentile(0.99)
    assert ours.busiest < 3


def test_many_engines_are_quick() -> None:
    out = simulate("headrace", SimSettings(engines=1000), Conversations(count=300))
    assert out.requests > 300


def test_a_cache_too_small_for_a_prompt_keeps_its_start() -> None:
    chain = [b"%d" % at for at in range(10)]
    requests = [SimRequest(0.0, chain, 160, 4), SimRequest(1e6, chain, 160, 4)]
    out = simulate("headrace", SimSettings(engines=1, cache_tokens=64), (requests, 16))
    assert out.cached_tokens == 64


def test_recorded_requests_are_read(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"timestamp": 20000, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]}\n\n'
        '{"timestamp": 10, "input_length": 600, "output_length": 5, "hash_ids": [1, 9]}\n'
    )
    requests, block = read_trace(trace)
    assert block == 512
    assert [(one.arrival, len(one.chain)) for one in requests] == [(10, 1), (20000, 2)]
    out = simulate("headrace", SimSettings(engines=2), (requests, block))
    assert (out.requests, out.cached_tokens) == (2, 512)


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "has no requests"), ("{}\n", "line 1"), ('{"timestamp": 1}\n', "missing required field")],
)
def test_a_wrong_trace_is_named(tmp_path: Path, text: str, why: str) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(text)
    with pytest.raises(ConfigError, match=why):
        read_trace(trace)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "missing")


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--engines", "8", "--conversations", "40", "--rate", "10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0].strip() for line in lines[2:]] == list(POLICIES)
    assert main(["simulate", "--engines", "0"]) == 2
    assert "--engines must be more than 0" in capsys.readouterr().err
