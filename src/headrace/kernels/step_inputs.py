"""The table of a step's inputs: the name, type and dimensions of each, and which persist.

The engine puts arrays of these names on the device. Code that records, captures or compiles a step, or pads its inputs,
reads here what may change from call to call. The fields of `ops.Batch` and `ops.SampleInputs` have the same names.

A step with constrained rows is two executables: the forward pass, whose output is `logits`, and sampling, which takes
that output as an input. A step in one part has no input `logits`. Only passes of a draft head have `features`, which is
an output of another executable, and `token_positions`, where the tokens of their embeddings stand, or `bounds` and the
history, from which these places follow. Passes over drafted blocks have `last_positions` and `whole_lens`, and `bounds`
if the device draws their tokens; then also `unmasked` if a mask is no token: ids that the history may keep. If a token
of a block depends on the one before it, the draws are an executable of their own. It has a sequence for each block, and
the inputs `guesses`, an output of the pass, and `unmoved`, bounds which say that a place is right.

Only a step that places sequences has the input `lengths`. In two parts, its sampling takes `drafts` and `position` from
the forward pass. Only a step with rows that name tokens, whose logprobs are asked for, has the input `named`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from headrace.sampling import DEVICE_ROWS
from headrace.types import GIVEN, NO_TOKEN, Bucket

__all__ = ["PERSISTENT", "STEP_INPUTS", "Dimension", "StepInput", "padded_sizes"]

Dimension = Literal[
    "3",
    "tokens",
    "seqs",
    "seqs + 1",
    "rows",
    "blocks",
    "biases",
    "masks",
    "vocab / 32",
    "vocab",
    "slots",
    "positions",
    "features",
    "drafts",
    "names",
    "guesses",
    "draft vocab",
]
"""The dimensions of a step's inputs. `types.Bucket` holds the maximum of each that varies. The others never change: the
history holds `slots` sequences of `positions` tokens (one column more if the device drafts), `drafts` has as many
columns as a sequence may have drafts (for each rank if a head makes them), `named` as many as a row of the step names
tokens, masks hold the vocabulary in words of 32 bits, `logits` has a column per token of the vocabulary, and `sizes`
has 3 elements. `guesses` has a row for each draft of each block, with a column per token that the drafter may guess."""


@dataclass(frozen=True, slots=True)
class StepInput:
    """One input of a step."""

    name: str
    dtype: Literal["int32", "int64", "float32"]
    dims: tuple[Dimension, ...]
    fill: float | Literal["last", "spare slot"] = 0
    """The value of padding: a number, the array's last value, or the slot of the history that no sequence uses."""
    persists: bool = False
    """The input stays on the device from step to step: steps read and write it in place, and every call gets the same
    tensor. If buffers are donated, the call takes it and returns it among the outputs under its name."""


def _table(*inputs: StepInput) -> Mapping[str, StepInput]:
    return MappingProxyType({one.name: one for one in inputs})


STEP_INPUTS: Mapping[str, StepInput] = _table(
    StepInput("sizes", "int32", ("3",)),
    StepInput("token_ids", "int32", ("tokens",)),
    StepInput("positions", "int32", ("tokens",)),
    StepInput("slot_mapping", "int32", ("tokens",)),
    StepInput("token_seq", "int32", ("tokens",)),
    StepInput("query_start", "int32", ("seqs + 1",), fill="last"),
    StepInput("context_lens", "int32", ("seqs",)),
    StepInput("block_tables", "int32", ("seqs", "blocks")),
    StepInput("slots", "int32", ("seqs",), fill="spare slot"),
    StepInput("rows", "int32", ("rows",)),
    *(StepInput(name, row.dtype, ("rows",), fill=row.neutral) for name, row in DEVICE_ROWS.items()),
    StepInput("seed", "int64", ("rows",)),
    StepInput("position", "int32", ("rows",)),
    StepInput("target", "int32", ("rows",), fill=NO_TOKEN),
    StepInput("slot", "int32", ("rows",), fill="spare slot"),
    StepInput("prompt_len", "int32", ("rows",)),
    StepInput("bias_row", "int32", ("biases",), fill=-1),
    StepInput("bias_token", "int32", ("biases",)),
    StepInput("bias_value", "float32", ("biases",)),
    StepInput("allowed", "int32", ("masks", "vocab / 32")),
    StepInput("allowed_row", "int32", ("rows",), fill=-1),
    StepInput("named", "int32", ("rows", "names"), fill=NO_TOKEN),
    StepInput("logits", "float32", ("rows", "vocab")),
    StepInput("features", "float32", ("tokens", "features")),
    StepInput("token_positions", "int32", ("tokens",)),
    StepInput("last_positions", "int32", ("tokens",)),
    StepInput("whole_lens", "int32", ("seqs",)),
    StepInput("unmasked", "int32", ("tokens",)),
    StepInput("guesses", "float32", ("guesses", "draft vocab")),
    StepInput("unmoved", "int32", ("seqs",), fill=GIVEN),
    StepInput("lengths", "int32", ("seqs",), fill=GIVEN),
    StepInput("bounds", "int32", ("seqs",), fill=GIVEN),
    StepInput("drafts", "int32", ("seqs", "drafts")),
    StepInput("history", "int32", ("slots", "positions"), persists=True),
)
"""The inputs by name."""
PERSISTENT: frozenset[str] = frozenset(one.name for one in STEP_INPUTS.values() if one.persists)
"""Inputs that are read and written in place; all others are new at each call, or the same tensor unchanged."""


@lru_cache(maxsize=64)
def padded_sizes(bucket: Bucket) -> Mapping[Dimension, int]:
    """The size of every dimension that depends on the bucket."""
    sizes: dict[Dimension, int] = {
        "tokens": bucket.tokens,
        "seqs": bucket.seqs,
        "seqs + 1": bucket.seqs + 1,
        "rows": bucket.rows,
        "blocks": bucket.blocks,
    }
    # 0: the bucket does not limit them.
    sizes |= {"biases": bucket.biases} if bucket.biases else {}
    sizes |= {"masks": bucket.masks} if bucket.masks else {}
    return MappingProxyType(sizes)
