"""The operator set bound to a device: the only functions that a model may call.

Notation: T tokens of a step, S sequences, R rows of logits, D hidden size, Hq and Hk query and KV heads, d head size, V
vocabulary. Activations are float32 unless the platform chose a narrower type at binding; weights are `Weight`s. First
dimensions are padded sizes: `batch.sizes` holds the true ones, and rows past them are undefined.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch

from headrace.kernels.moe.routing import Routing
from headrace.kernels.weight import Weight

__all__ = ["Batch", "Ops", "OptionalOps", "Placed", "SampleInputs", "SampleOutputs", "Shifted"]

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """The device's view of a plan: int32 tensors. See `StepPlan` for the meaning of each."""

    sizes: Tensor
    """int32 [3] on the host or the device, as the platform requires: T, S, R."""
    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    token_seq: Tensor
    """[T]; the index of each token's sequence."""
    query_start: Tensor
    context_lens: Tensor
    block_tables: Tensor
    slots: Tensor
    rows: Tensor


@dataclass(frozen=True, slots=True)
class SampleInputs:
    """Tensors of `SamplingBatch`, and the sampler's state on the device. Each is [R] unless stated otherwise."""

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    min_p: Tensor
    repetition_penalty: Tensor
    presence_penalty: Tensor
    frequency_penalty: Tensor
    seed: Tensor
    """int64; the bits of the unsigned seed."""
    position: Tensor
    target: Tensor
    """NO_TOKEN: sample. Otherwise score this token."""
    slot: Tensor
    prompt_len: Tensor
    bias_row: Tensor
    """[B]; B triplets; row -1 is padding."""
    bias_token: Tensor
    bias_value: Tensor
    allowed: Tensor
    """int32 bit masks [M, ceil(V / 32)]."""
    allowed_row: Tensor
    """-1: no mask."""
    history: Tensor
    """int32 [slots, max_model_len]: tokens by sequence and position. The sampler writes history[slot, position] =
    token. If the device drafts, there is a last column more: the number of known tokens, of sequences that it
    places."""


@dataclass(frozen=True, slots=True)
class SampleOutputs:
    """The results of a step's rows."""

    tokens: Tensor
    """int32 [R]; the sampled token, or NO_TOKEN for a scored row. NO_CHOICE if bias and mask allow no token, NOT_FINITE
    if the logits hold NaN or +inf or no finite value (also for a scored row): such rows write nothing to the
    history."""
    logprobs: Tensor
    """float32 [R]; the logprob of the sampled or target token under the raw logits."""
    ranks: Tensor
    """int32 [R]; 1 + the number of tokens with a higher raw logit."""
    top_ids: Tensor
    """int32 [R, K]"""
    top_logprobs: Tensor
    """float32 [R, K]"""


class Placed(NamedTuple):
    """The fields of `Batch`, and the `position` of `SampleInputs`, of a step whose rows the device has placed."""

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    context_lens: Tensor
    position: Tensor


class Shifted(NamedTuple):
    """The same of a drafter's pass, whose tokens stand elsewhere."""

    positions: Tensor
    next_positions: Tensor
    """One more than `positions`."""
    slot_mapping: Tensor
    context_lens: Tensor
    position: Tensor

    def of(self, batch: Batch) -> Batch:
        """The batch with its tokens there."""
        return replace(batch, positions=self.positions, slot_mapping=self.slot_mapping, context_lens=self.context_lens)


class Ops(Protocol):
    """One callable per operator. Keyword names are part of the contract: every platform's callable has the same."""

    def resolve_tokens(self, batch: Batch, history: Tensor) -> Tensor:
        """int32 [T]: token_ids with each negative id (plans have NO_TOKEN) replaced by history[slot, position]; writes
        every id into the history, too."""

    def embedding(self, ids: Tensor, table: Weight, scale: float, first_row: int | None = None) -> Tensor:
        """[T, D]: rows of the table times scale.

        `first_row` is given only if tables are split over ranks: the table holds the rows from there on, and ids of
        other rows give zeros.
        """

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """[T, D]: x * (1 / sqrt(mean(x^2) + eps)) * weight."""

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(rms_norm(x + residual), x + residual)."""

    def linear(self, x: Tensor, weight: Weight) -> Tensor:
        """[T, N]: x @ weight^T + bias."""

    def rotary_cache(
        self,
        qkv: Tensor,
        batch: Batch,
        kv: Any,
        layer: int,
        cos_sin: Tensor,
        num_q_heads: int,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        eps: float,
    ) -> Tensor:
        """Split [T, (Hq + 2 Hk) d] into q, k, v, normalize and rotate q and k, and write k and v to the cache.

        RMS norm per head applies to q and k if norms [d] are given. The rotation is of NeoX halves, with cos_sin
        float32 [positions, rotary_dim] = cos | sin; the rest of d is not rotated. k and v are written at slot_mapping.
        Returns q [T, Hq d]. With 0 query heads it writes keys and values alone.
        """

    def attention(
        self,
        q: Tensor,
        batch: Batch,
        kv: Any,
        layer: int,
        scale: float,
        window: int | None,
        soft_cap: float | None,
        sinks: Tensor | None,
        alibi: Tensor | None,
    ) -> Tensor:
        """[T, Hq d]: causal attention of each token over its sequence's cached keys up to its own position.

        The keys are processed in ascending blocks with an online softmax. With `window` w, position p attends to
        positions > p - w. `sinks` [Hq] are added to the softmax's denominator as logits. `alibi` [Hq] are slopes.
        """

    def gated_activation(self, x: Tensor, kind: str) -> Tensor:
        """[T, F] of [T, 2F]: act(x[:, :F]) * x[:, F:]; kind is `silu`, `gelu` or `gelu_tanh`."""

    def logits(self, x: Tensor, batch: Batch, head: Weight, soft_cap: float | None) -> Tensor:
        """float32 [R, V]: rows of x times the head; soft_cap c gives c tanh(y / c)."""

    def sample(self, logits: Tensor, inputs: SampleInputs, batch: Batch, num_logprobs: int) -> SampleOutputs:
        """Apply bias, mask and penalties, and choose one token per row.

        At temperature 0 the choice is greedy. At other temperatures, temperature, top-k, min-p and top-p apply in this
        order, and the token is sampled with Philox4x32-10 keyed by (seed, position). With num_logprobs -1, logprobs and
        ranks may be undefined.
        """


class OptionalOps(Protocol):
    """Operators that only some architectures call, or that fuse several (`registry.OPTIONAL`), bound like those of
    `Ops`."""

    def gated_linear(self, x: Tensor, weight: Weight, kind: str) -> Tensor:
        """[T, F] of a weight [2F, K]: gated_activation(linear(x, weight), kind)."""

    def mla(self, q: Tensor, batch: Batch, latents: Tensor, scales: Tensor | None, rank: int, scale: float) -> Tensor:
        """[T, Hq R]: causal multi-head latent attention in its absorbed form.

        A row of the paged cache `latents` [num_blocks, block_size, R + r] holds one token's latent (R = `rank`) and its
        rotated shared key (r). q [T, Hq (R + r)] holds each head's query multiplied by the key projection of the
        latent, then its rotated part. The result, a mean of latents, is the input of the value projection. int8 and
        float8_e4m3 rows have `scales` float32 [num_blocks, block_size].
        """

    def moe(
        self, x: Tensor, router: Tensor, gate_up: Weight, down: Weight, bias: Tensor | None, routing: Routing, kind: str
    ) -> Tensor:
        """[T, D]: the sum over each token's experts e of their share times down_e (act(gate_e x) * up_e x).

        `routing` chooses the experts from `router` [T, E] and `bias` [E]. `gate_up` stacks gate_0, up_0, gate_1, up_1,
        … of [F, D] each, `down` stacks down_0, down_1, … of [D, F] each; `kind` as in `gated_activation`.
        """

    def own_experts(
        self,
        x: Tensor,
        router: Tensor,
        gate_up: Weight,
        down: Weight,
        bias: Tensor | None,
        routing: Routing,
        kind: str,
        first: int,
    ) -> Tensor:
        """float32 [T k, D]: in row t k + i what the i-th choice of token t gives, before its share, and zeros if that
        expert is not here. The terms of `moe`, of the experts from `first` on alone, which the stacks hold."""

    def mix_experts(self, outputs: Tensor, router: Tensor, bias: Tensor | None, routing: Routing, ranks: int) -> Tensor:
        """[T, C] in router's dtype: the sums of `moe`, in its order, over outputs float32 [T k, ranks C].

        Of row t k + i only the C columns of the rank that holds the i-th choice of token t are read
        (`routing.expert_range`).
        """

    def gated_delta_rule(
        self,
        qkv: Tensor,
        decay: Tensor,
        strength: Tensor,
        batch: Batch,
        state: Tensor,
        pending: Tensor,
        num_k_heads: int,
        scale: float,
        normalise: bool,
    ) -> Tensor:
        """The gated delta rule of qkv [T, 2 Hk dk + Hv dv] = q | k | v: [T, Hv dv].

        For each value head h, whose query and key head is h div (Hv / Hk): S = e^decay S,
        S = S + strength k (v - S^T k)^T, o = scale S^T q. decay [T, Hv] is a logarithm, at most 0; `normalise` first
        divides q and k by their length. `state` float32 [slots, Hv, dk, dv] and `pending` float32
        [slots, CHUNK, Hk dk + Hv dv + 2 Hv] (k | v | decay | strength) are rows of a pool at batch.slots, read and
        written as described in `recurrence`.
        """

    def mamba2_scan(
        self,
        xbc: Tensor,
        dt: Tensor,
        a: Tensor,
        d: Tensor | None,
        dt_bias: Tensor | None,
        dt_limit: tuple[float, float],
        batch: Batch,
        state: Tensor,
        pending: Tensor,
        num_groups: int,
    ) -> Tensor:
        """The Mamba-2 scan of xbc [T, H P + 2 G N] = x | b | c: [T, H P].

        For each head, whose b and c belong to group h div (H / G), with r = clamp(softplus(dt + dt_bias), *dt_limit):
        h = e^(r a) h + r x b^T, y = h c + d x. dt [T, H]; a (negative), d and dt_bias float32 [H]. `state` float32
        [slots, H, P, N] and `pending` float32 [slots, CHUNK, H P + G N + H] (x | b | dt) are rows of a pool at
        batch.slots, read and written as described in `recurrence`.
        """

    def causal_conv1d(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, batch: Batch, state: Tensor
    ) -> Tensor:
        """[T, D]: y_t = act(bias + sum over k of weight[:, k] x_(t - K + 1 + k)), for each channel separately.

        weight [D, K], bias [D], act SiLU or none. `state` [slots, K - 1, D] holds a sequence's last inputs at
        batch.slots, oldest first. Inputs before position 0 are not read, so a slot need not be cleared.
        """

    def ngram(self, batch: Batch, lengths: Tensor, history: Tensor, most: int) -> Tensor:
        """int32 [S, most]: drafts of the sequences with `lengths` [S] of -1 or more and more than one token.

        A length is the number of known tokens; ON_DEVICE: it is in the last column of the history; GIVEN: the device
        places nothing. Drafts continue the longest earlier match of the last tokens (2 to 32; of several the latest)
        with what followed there; a copy that reaches the end goes on with its own beginning. NO_TOKEN without a match.
        """

    def place(
        self, batch: Batch, lengths: Tensor, drafts: Tensor, position: Tensor, history: Tensor, size: int
    ) -> Placed:
        """Inputs of the step with the rows of sequences with lengths at their true positions.

        Their first token is the last known one, at position length - 1, the others are drafts (without a draft any
        token): the first columns of `drafts` [S, N], of which those behind a sequence's own are not read. `batch` and
        `position` [R] hold upper bounds, which the block table covers; blocks have `size` tokens.
        The length becomes history[slot, -1]. One that the history or the block table does not hold, as behind a step
        that failed, is an error or changes nothing. The step may end behind the last draft of the last sequence:
        nothing reads what is computed for further tokens.
        """

    def accept(self, batch: Batch, lengths: Tensor, drafts: Tensor, tokens: Tensor, history: Tensor) -> Tensor:
        """int32 [S, 2]: for sequences with lengths, how many of their sampled `tokens` [R] count, and how many drafts
        they had, up to the first negative one; otherwise 0.

        The drafts that are what was sampled count, up to the first other one, and the token after them. The first
        number is added to history[slot, -1]; the sampler has written the tokens to the history.
        """

    def read_drafts(self, batch: Batch, lengths: Tensor, history: Tensor, most: int) -> Tensor:
        """int32 [S, most]: as `ngram`, but the drafts are what the history holds behind the known tokens, where passes
        of a drafter have written them: one fewer than the sequence has tokens, up to the first negative one."""

    def shift(self, batch: Batch, bounds: Tensor, position: Tensor, history: Tensor, size: int) -> Shifted:
        """Inputs of a drafter's pass with the rows of sequences with `bounds` [S] of 0 or more at their true positions.

        A bound is the number of known tokens that the pass was planned for, and history[slot, -1] the true one: all
        positions are lower by the difference, and never below 0. GIVEN: they are right. `batch` is as for `place`.
        A difference that is negative or leaves a position below 0 is an error or changes nothing.
        """

    def block_conv(self, x: Tensor, kernel: Tensor, base: Tensor, side: int, rows: int) -> Tensor:
        """[T, H] of x [T, H]: a causal convolution over the rows of drafted blocks, `rows` tokens each (DFlash2).

        y_r[c] = sum over t of (base[t, c] + kernel_r[side, t, c div (H / groups)]) x_(r - t)[c], without the terms
        before the block. kernel [T, 2 taps groups] is viewed as [T, 2, taps, groups]; base float32 [taps, H].
        """

    def store_features(self, x: Tensor, batch: Batch, kv: Any, layer: int) -> Tensor:
        """Stores rows of hidden features x [T, D] in the cache at slot_mapping, and returns x.

        The layer keeps nothing else: the first Hk d values are stored as its keys and the rest, at most as many, as its
        values, both in the cache's type.
        """

    def load_features(self, batch: Batch, kv: Any, layer: int, width: int) -> Tensor:
        """float32 [T, width]: rows that `store_features` has stored, at slot_mapping."""

    def gather_blocks(self, kv: Any, ids: Tensor) -> Tensor:
        """uint8 [N, bytes]: the blocks ids [N] of all layers, scales included, in an order of bytes that is the
        device's own. Block 0 is padding: its row may hold anything."""

    def scatter_blocks(self, kv: Any, ids: Tensor, packed: Tensor) -> Tensor:
        """Writes what `gather_blocks` of the same layout on the same kind of device gave to the blocks ids [N], and
        returns ids. They are distinct, except 0, which is padding: nothing depends on its row."""

    def take_rows(self, x: Tensor, batch: Batch) -> Tensor:
        """[R, D]: the rows `batch.rows` of x [T, D]."""

    def widen_logits(self, logits: Tensor, columns: Tensor) -> Tensor:
        """float32 [R, V]: logits of a reduced vocabulary as logits of the whole one.

        columns int32 [V] holds each token's column of `logits`; -1: it has none, and its logit is -inf.
        """

    def correct_logits(self, logits: Tensor, corrections: Tensor, at: int, drafts: int) -> Tensor:
        """float32 [N, V]: the logits of each block's draft `at`, plus its corrections [N, V] (DSpark).

        logits [N drafts, V] holds the rows of a block one after another.
        """

    def named_logprobs(self, logits: Tensor, named: Tensor, top_logprobs: Tensor) -> Tensor:
        """float32 [R, N]: the logprobs under the raw logits of the tokens named [R, N], with the bits that `sample`
        gives the same tokens; 0 where the name is negative. `top_logprobs` [R, K >= 1] are those of `sample`."""
