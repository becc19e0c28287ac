"""The data that layers exchange: plans, results, layouts, capabilities and the user's sampling parameters.

Plain data with ints and numpy arrays. It contains no device, stream or torch type, so that the core, a simulator and a
device outside this repository can all use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from headrace.embedding_facts import Pooling
from headrace.kv_layout import KVLayout, LayerKV
from headrace.sampling import SamplingParams
from headrace.scheduler_stats import SchedulerStats
from headrace.structured_outputs import Constraint, ConstraintKind

__all__ = [
    "API_VERSION",
    "ATTENTION_FEATURES",
    "COLLECTIVES",
    "GIVEN",
    "NOT_FINITE",
    "NO_CHOICE",
    "NO_TOKEN",
    "ON_DEVICE",
    "QUANT_FORMATS",
    "Bucket",
    "Capabilities",
    "Constraint",
    "ConstraintKind",
    "Delta",
    "DeviceInfo",
    "FinishReason",
    "KVLayout",
    "LayerKV",
    "Request",
    "SamplingBatch",
    "SamplingParams",
    "SchedulerStats",
    "StepPlan",
    "StepResult",
    "TokenLogprobs",
]

API_VERSION = (1, 0)
"""Version of the platform contract: members are appended in a minor, changed in a major."""

NO_TOKEN = -1
"""In `StepPlan.token_ids`: the token that this slot sampled last, which is still on the device. In results: a row that
was not sampled."""

ON_DEVICE, GIVEN = -1, -2
"""In `StepPlan.lengths`."""

NO_CHOICE = -2
"""In results: bans and masks exclude every token of this row."""
NOT_FINITE = -3
"""In results: the row's logits hold NaN, an infinitely large one, or none that is finite."""

FinishReason = Literal["stop", "length", "abort", "error"]
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RemoteBlocks:
    """The first blocks of a prompt, which another engine has computed."""

    address: str
    """Of its connector."""
    tokens: int
    """The blocks hold so many tokens of the prompt, or less."""
    timeout: float
    """Seconds after which the blocks that have not arrived are computed instead."""
    patience: float = 0.0
    """Seconds for which the other engine may wait for a block that it is still computing."""
    epoch: int | None = None
    """Number of the other engine's start; None: any."""

    @property
    def awaited(self) -> bool:
        """The other engine computes the blocks at this moment: they come at the rate of its steps."""
        return self.patience > 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence for the core (a request with n > 1 has been fanned out before)."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    """Token ids that end the sequence unless `params.ignore_eos`."""
    priority: int = 0
    """Lower runs first."""
    arrival: float = 0.0
    """Monotonic seconds."""
    turn: tuple[int, ...] = ()
    """Its place among the requests that came at the same moment, with the same priority: the lowest runs first."""
    salt: str = ""
    """Requests share cached prefixes only within one (adapter, salt)."""
    adapter: str = ""
    constraint: Constraint | None = None
    predicted: tuple[int, ...] = ()
    """Tokens that the caller expects as the output: drafts of speculative decoding."""
    max_drafts: int | None = None
    """Most drafts that one step verifies for it; 0: none, None: as many as the engine finds worth it."""
    predicted_only: bool = False
    """Drafts come from `predicted` alone, whatever else the engine drafts with."""
    keep: bool = False
    """At its end the sequence stays open, in its slot and with its blocks, for a request that extends it."""
    extends: str = ""
    """Id of an open sequence that this prompt goes on with: it takes over the slot and the blocks. If that one is not
    open any more, this is a request as any other."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Tokens that the output may not hold one behind the other: `params.bad_words`, encoded."""
    pooling: Pooling | None = None
    """The answer is the prompt's hidden states, pooled; nothing is generated (`params.max_tokens` is 0)."""
    gives_blocks: bool = False
    """The full blocks of its prompt are put where other engines can fetch them."""
    remote: RemoteBlocks | None = None
    """Where its first blocks can be fetched. Those that don't come in time are computed."""
    whole: bool = False
    """Its caller reads the answer as a whole: one delta, at the end."""
    rivals: tuple[int, ...] = ()
    """Tokens whose logprobs are wanted in the place of the prompt's token `params.prompt_logprobs_start`, besides
    its own."""
    then: Request | None = None
    """Goes on where this sequence ends by itself, with the next step: its prompt is what follows the tokens of this
    one, without an end or stop token. Its `prompt_logprobs_start` counts from there, too."""
    then_after: tuple[int, ...] = ()
    """Stop tokens after which `then` begins: the text ends just before them, as before end tokens."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Logprobs at one position: the token's own, its rank (1 is the most likely), and the k most likely
    alternatives."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Delta:
    """The new tokens and the state of one sequence after one commit."""

    request_id: str
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    """One entry per token of `token_ids` if the request asked for logprobs."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Set once, for the complete prompt, with the first token. Entry 0 and those before `prompt_logprobs_start` are
    None."""
    finish_reason: FinishReason | None = None
    stop_token: int | None = None
    """The id of the stop or end token that ended the sequence; it is the last of `token_ids`."""
    cached_tokens: int = 0
    """Prompt tokens that were not computed when the sequence was first scheduled."""
    first_scheduled: float | None = None
    """Monotonic seconds; set with the first token. Queue time is this minus the arrival."""
    accepted_drafts: int = 0
    rejected_drafts: int = 0
    """Drafts of speculative decoding that this commit has verified."""
    error: str | None = None
    request_fault: bool = False
    """The error is the request's own: what it asked for left nothing to sample."""
    embedding: bytes | None = None
    """With the end of a request with `pooling`: float32 [hidden], little-endian."""
    rivals: list[float] | None = None
    """The logprobs of the request's rivals; set with `prompt_logprobs`."""
    went_on: bool = False
    """With the end of a request with `then`: that one has begun."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The largest sizes of a step that is compiled for them."""

    tokens: int
    seqs: int
    rows: int
    blocks: int
    """Length of a block-table row."""
    biases: int = 0
    """Length of `bias_row`, `bias_token` and `bias_value` if shapes are static; otherwise 0: any number."""
    masks: int = 0
    """Rows of `allowed` if shapes are static; otherwise 0."""


QUANT_FORMATS = frozenset(
    {"int4", "int8", "fp8_e4m3", "mxfp4", "nvfp4"}
    | {f"gguf:{name}" for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "iq4_xs", "mxfp4")}
    | {f"gguf:q{bits}_k" for bits in range(2, 7)}
)
"""Quantized formats of weights, by their names in `Weight.scheme`: formats to which checkpoint schemes are converted,
and the block formats of GGUF."""
ATTENTION_FEATURES = frozenset({"gqa", "sliding_window", "soft_cap", "sinks", "alibi"})
"""Features of `attention` that layers may need: fewer KV heads than query heads, a window, capped scores, sinks,
slopes."""
COLLECTIVES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast"})
"""Collectives that a communicator may have, by the names of its methods."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of a device, as frozen data. The engine branches on these and never on the name of a
    platform."""

    dtypes: frozenset[str]
    kv_dtypes: frozenset[str]
    quant_formats: frozenset[str] = frozenset()
    """Formats of `QUANT_FORMATS` that the device's own operators support, stored so or converted at load. The reference
    serves other weights, with one log line; they are refused if the device's tensors are not torch tensors."""
    block_sizes: tuple[int, ...] = (16,)
    """Supported KV block sizes, the preferred one first."""
    static_shapes: bool = False
    """Steps are compiled for buckets and inputs are padded to them."""
    in_place_kv: bool = True
    async_exec: bool = False
    """Calls of an `Executable` return before the device has finished."""
    deterministic: bool = False
    """A row's bits depend on neither the batch, the chunking nor the number of threads."""
    collectives: frozenset[str] = frozenset()
    attention_features: frozenset[str] = frozenset()
    """Out of `ATTENTION_FEATURES`. A model with a layer that needs another one is refused."""
    max_tokens_per_step: int = 2048
    computes: bool = True
    """False: a simulator, whose operators give shapes and costs but no values."""
    host_memory: bool = False
    """The device computes in the host's memory: the KV cache gets a share of the free memory instead of almost all."""
    head_sizes: frozenset[int] = frozenset()
    """Head sizes that attention supports; empty: any. A model with others is refused."""
    missing_operators: frozenset[str] = frozenset()
    """Optional operators (`registry.OPTIONAL`) that it cannot run at all. A model that needs one is refused."""
    passes_rows: bool = False
    """A communicator of two ranks is an `interface.PassesRows`, so that a model's layers can be split into stages."""
    kv_lanes: int = 1
    """Rows of a head in the cache are padded to a multiple of so many values."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device that a platform found, without opening it."""

    index: int
    name: str
    memory_bytes: int
    details: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class SamplingBatch:
    """Sampling parameters of the R rows of a plan.

    Bans (min_tokens) and biases are triplets (row, token, value); a ban is -inf.
    """

    params: dict[str, Ints | Floats]
    """[R] each: the parameters of `sampling.DEVICE_ROWS` by name."""
    seed: npt.NDArray[np.uint64]
    position: Ints
    """Index of the token to be sampled in its sequence: with the seed, the key of the random number."""
    bias_row: Ints
    bias_token: Ints
    bias_value: Floats
    allowed: npt.NDArray[np.uint32] | None = None
    """Bit masks [M, ceil(V / 32)], bit t set if token t is allowed; None when no row has one."""
    allowed_row: Ints | None = None
    """[R]: the row of `allowed` that applies, -1 for none."""
    num_logprobs: int = 0
    """Alternatives to report: the largest number that any row requests. -1: no logprobs."""
    named: Ints | None = None
    """[R, N]: the tokens whose logprobs each row asks for, then NO_TOKEN; None when no row asks for any. With names,
    `num_logprobs` is at least 1."""


@dataclass(slots=True)
class StepPlan:
    """One step that the core decided: T tokens of S sequences, R rows of logits. Unpadded host arrays.

    Sequence s has tokens `query_start[s]:query_start[s + 1]`, attends to `context_lens[s]` keys (including those that
    it writes in this step), and stores its sampled tokens in device row `slots[s]` while it runs.
    """

    step: int
    token_ids: Ints
    """[T]; NO_TOKEN for the token that the sequence sampled last, if it is still on the device."""
    positions: Ints
    """[T]; index of the token in its sequence."""
    slot_mapping: Ints
    """[T]; the slot of the token's key and value: block * block_size + offset."""
    query_start: Ints
    """[S + 1]"""
    context_lens: Ints
    """[S]"""
    block_tables: Ints
    """[S, B]; unused entries are 0."""
    slots: Ints
    """[S]; row of the device's token history."""
    rows: Ints
    """[R]; index into T of the tokens whose logits are needed, in their order; a token may stand several times."""
    row_seq: Ints
    """[R]; index into S."""
    row_target: Ints
    """[R]; NO_TOKEN: sample a token. Otherwise the known next token whose logprob is requested (prompt logprobs)."""
    prompt_lens: Ints
    """[S]; tokens of the prompt, for penalties that count output only."""
    sampling: SamplingBatch
    copies: Ints
    """[C, 2]; block copies (source, destination) to make before the step."""
    history_slots: Ints
    history_positions: Ints
    history_tokens: Ints
    """[H]; known tokens that the device's history must contain and that this step does not compute (cached prefixes
    with penalties)."""
    stores: Ints | None = None
    """[K]; blocks whose content the result brings. They are read first: before `loads`, `copies` and the step."""
    loads: tuple[tuple[int, Any], ...] = ()
    """(block, its bytes), to be written before `copies`. Of two for one block, the last counts."""
    split: bool = False
    """The step is launched in two parts: the forward pass, and sampling after the core has completed the plan. Until
    then `row_target` and the constraints in `sampling` are not final."""
    lengths: Ints | None = None
    """[S]; None: all is given. Otherwise, for each sequence that the device places: the number of its known tokens, or
    ON_DEVICE if earlier steps in flight decide it; GIVEN for the others. Every token of a placed sequence has a row.
    The first is its last known token, the others are drafts of the device. Its positions, slots, lengths of context and
    positions of samples in this plan are upper bounds."""
    hidden: bool = False
    """The result must have the hidden states of all tokens."""
    request_ids: tuple[str, ...] = ()
    """[S]; for logs and errors."""
    tag: Any = None
    """The core's own data, which it reads at commit; other layers don't use it."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_seqs(self) -> int:
        return len(self.context_lens)

    @property
    def num_rows(self) -> int:
        return len(self.rows)


@dataclass(slots=True)
class StepResult:
    """The results of the R rows of a plan, as host arrays."""

    tokens: Ints
    """[R]; NO_TOKEN for rows that were only scored, NO_CHOICE and NOT_FINITE for rows that have no token."""
    logprobs: Floats | None = None
    """[R]; logprob of the sampled token, or of the target."""
    ranks: Ints | None = None
    """[R]; 1 is the most likely token."""
    top_ids: Ints | None = None
    """[R, K], most likely first."""
    top_logprobs: Floats | None = None
    counts: Ints | None = None
    """[S, 2] if the device has placed sequences: how many of each one's tokens count, and how many drafts it had; 0 for
    the others."""
    stored: Sequence[npt.NDArray[np.uint8]] | None = None
    """K of uint8 [bytes]: the blocks of `StepPlan.stores`, as `gather_blocks` reads them."""
    hidden: Floats | None = None
    """[T, hidden] if the plan asks for them: the outputs of the final norm."""
    named: Floats | None = None
    """[R, N]: logprobs of the tokens that the plan names."""
