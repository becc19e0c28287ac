"""Messages survive the way; errors arrive as what they were."""

from __future__ import annotations

import errno

import msgspec
import numpy as np
import pytest
from engine_fakes import INFO, scored

from headrace import errors
from headrace.core.inspection import PrefixView, SchedulerView, SequenceView
from headrace.engine import wire as protocol
from headrace.engine.stats import EngineStats, EngineTotals, EngineView, MethodTotals, SpeculationTotals
from headrace.types import Delta, Request, SamplingParams, SchedulerStats

PARAMS = SamplingParams(logit_bias=((5, -1.5),), allowed_token_ids=(1, 2), stop=("é",), seed=2**64 - 1, logprobs=2)
COMMANDS = [
    protocol.Add(Request("a", (1, 2, 3), PARAMS, (7,), arrival=1.25, salt="s"), [("a#0", 2**64 - 1), ("a#1", 0)]),
    protocol.Add(Request("a", (1,), PARAMS, predicted=(4, 5), max_drafts=2, predicted_only=True), [("a#0", 0)]),
    protocol.Abort(["a#0", "b#0"]),
    protocol.Finish("a#0"),
    protocol.GetStats(3),
    protocol.GetView(4),
    protocol.Shutdown(),
]
TOTALS = EngineTotals(1.5, 2.5, 3.5, 4, 5.5, 6)
DRAFTS = SpeculationTotals(0.25, (MethodTotals("ngram", 3, (3, 2), (2, 0)),))
STATS = EngineStats(SchedulerStats(1, 2, 3, 4, 5, 6, 7, 8, 9), 16, 10, 0.5, 0.25, 0.75, 2, TOTALS, DRAFTS)
VIEW = EngineView(
    8.5,
    STATS,
    SchedulerView(
        8,
        [SequenceView("a#0", "decode", 1.5, 9, 8, 12, 4, 16, 1, 0)],
        [],
        2,
        [0, 1, 4],
        [PrefixView(-1, 8, 8, 1, 0, "", False)],
        2,
        False,
    ),
)
EVENTS = [
    protocol.Loading("weights", 0.5),
    protocol.Ready(INFO),
    protocol.Failed(protocol.WireError("OutOfMemory", "no room")),
    protocol.Deltas(
        [Delta("a#0", [1, 2], [scored(1), scored(2)], [None, scored(3)], "stop", 2, 4, 1.5, rivals=[-0.5])]
    ),
    protocol.Refused(["a#0"], protocol.WireError("Overloaded", "full", retry_after=2.0)),
    protocol.StatsReply(3, STATS),
    protocol.ViewReply(4, VIEW),
    protocol.Beat(0.5),
]


@pytest.mark.parametrize("message", COMMANDS, ids=lambda message: type(message).__name__)
def test_commands(message: protocol.Command) -> None:
    assert protocol.decode_command(protocol.encode(message)) == message


@pytest.mark.parametrize("message", EVENTS, ids=lambda message: type(message).__name__)
def test_events(message: protocol.Event) -> None:
    assert protocol.decode_event(protocol.encode(message)) == message


def test_numpy_scalars_become_plain() -> None:
    delta = Delta("a", [np.int32(5)], cached_tokens=np.int64(3))  # type: ignore[list-item, arg-type]
    assert protocol.decode_event(protocol.encode(protocol.Deltas([delta]))) == protocol.Deltas(
        [Delta("a", [5], cached_tokens=3)]
    )


@pytest.mark.parametrize("data", [b"", b"\x80\x04N.", b"\x91\xa3Add", b"\x92\xa6Finish\x05", b"\xc1"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        protocol.decode_command(data)


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidRequest("no", "top_p", "invalid_value"),
        errors.ContextOverflow("too long", "prompt"),
        errors.NeverFits("too big", "max_tokens"),
        errors.Overloaded("full", 3.5),
        errors.CheckpointError("truncated", "model.gguf", "blk.0"),
        errors.ConfigError("bad"),
        errors.DeviceLost("gone"),
        errors.EngineDead("dead"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_keep_class_message_and_fields(error: errors.HeadraceError) -> None:
    back = protocol.from_wire(protocol.to_wire(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_other_errors_arrive_with_their_type() -> None:
    back = protocol.from_wire(protocol.to_wire(ZeroDivisionError("by zero")))
    assert type(back) is errors.EngineDead
    assert str(back) == "ZeroDivisionError: by zero"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes"),
        RuntimeError("can't start new thread"),
    ],
    ids=str,
)
def test_memory_that_a_library_does_not_get_is_out_of_memory(error: Exception) -> None:
    back = protocol.from_wire(protocol.to_wire(error))
    assert type(back) is errors.OutOfMemory
    assert str(back).startswith(f"{type(error).__name__}: {error}")
    assert "ulimit -v" in str(back)


def test_a_plugins_own_error_arrives_as_ours() -> None:
    class Special(errors.PlatformError):
        pass

    assert type(protocol.from_wire(protocol.to_wire(Special("x")))) is errors.PlatformError
