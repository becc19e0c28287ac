"""Splits a decoder over ranks: every layer (tensor parallelism; Megatron-LM, arXiv:1909.08053), and the sequence of
layers into stages (pipeline parallelism; GPipe, arXiv:1811.06965).

QKV and gate/up are column-parallel, output and down are row-parallel, embedding and head are split by vocabulary.
Every rank holds complete query heads with the KV heads they read, a range of the MLP's inner columns, and a range of
the vocabulary. A rank's row-parallel product is one term of a sum; `Collectives.all_reduce` adds the terms.

A family whose layers hold more than dense MLPs uses the same functions: `Shard.inner` or `Shard.split` give a rank's
range, `take_columns` and `Weight.take` split a matrix, and the decoder's all-reduce adds the terms. Experts are split
by their inner columns (`Assembly._expert_parts`), so that every rank has the same work independently of the router's
choice.

With `expert_parallel`, each rank holds complete experts instead (GShard, arXiv:2006.16668). Every rank has every token
already, so none is sent to its experts. What they give returns by `ExchangesBlocks.all_to_all`: each rank gets a block
of the model's columns of every (token, expert) pair, adds those of a token in the order of the choice, and the blocks
are gathered. So the sums are those of one rank, to the bit, and a pair crosses once.

A stage is a run of layers. The first one embeds the tokens; each passes the residual stream to the next; the last one
norms it and has the head. Each layer is computed as in a model of one stage, so stages change no bit.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from headrace.errors import ConfigError
from headrace.kernels.moe.routing import expert_range
from headrace.kernels.weight import Weight
from headrace.models.config import DecoderConfig
from headrace.quant.column_split import column_unit

__all__ = [
    "ONE_STAGE",
    "WHOLE",
    "Collectives",
    "ExchangesBlocks",
    "RowPipe",
    "Shard",
    "StageLinks",
    "head_columns",
    "local_config",
]

_log = logging.getLogger(__name__)


class Collectives(Protocol):
    """The collective operations that a decoder calls, a part of `platforms.interface.Communicator`.

    They are recorded with the other operators of a step.
    """

    def all_reduce(self, x: Any) -> Any: ...

    def all_gather(self, x: Any, dim: int) -> Any: ...


@runtime_checkable
class ExchangesBlocks(Collectives, Protocol):
    """Collectives with the one that complete experts per rank need; see `platforms.interface.ExchangesBlocks`."""

    def all_to_all(self, x: Any, dim: int) -> Any: ...


class RowPipe(Protocol):
    """What two stages call to pass rows on, as `platforms.interface.PassesRows` describes it."""

    def send_rows(self, x: Any) -> None: ...

    def receive_rows(self, like: Any, width: int) -> Any: ...


@dataclass(frozen=True, slots=True)
class StageLinks:
    """A stage's connections to its neighbours; None at the ends."""

    before: RowPipe | None = None
    after: RowPipe | None = None


ONE_STAGE = StageLinks()


@dataclass(frozen=True, slots=True)
class Shard:
    """This rank's part of the model: a part of every layer of its stage."""

    rank: int = 0
    """Among the ranks that share the layers."""
    size: int = 1
    expert_parallel: bool = False
    """Ranks hold complete experts, and every rank complete shared experts."""
    stage: int = 0
    stages: int = 1

    @staticmethod
    def of(number: int, size: int, stages: int, expert_parallel: bool = False) -> Shard:
        """The part of one of size * stages ranks: the ranks of a stage stand one behind the other."""
        return Shard(number % size, size, expert_parallel, number // size, stages)

    @property
    def number(self) -> int:
        """The rank among all of the model."""
        return self.stage * self.size + self.rank

    @property
    def ranks(self) -> int:
        """The number of all ranks of the model."""
        return self.size * self.stages

    @property
    def embeds(self) -> bool:
        return self.stage == 0

    @property
    def samples(self) -> bool:
        """Whether the stage is the last one."""
        return self.stage == self.stages - 1

    def layers(self, config: DecoderConfig) -> tuple[int, int]:
        """This stage's [begin, end) of the layers; earlier stages have one more if they don't divide, because the last
        one has the head. Raises ConfigError if there are fewer layers than stages."""
        count = len(config.layers)
        if count < self.stages:
            raise ConfigError(
                f"pipeline_parallel_size {self.stages}: {config.family}'s {count} layers cannot be split over so many "
                f"stages: choose at most {count}"
            )
        begin, end = (-(-count * at // self.stages) for at in (self.stage, self.stage + 1))
        return begin, end

    def split(self, count: int, what: str, unit: int = 1) -> tuple[int, int]:
        """This rank's [begin, end) of `count` items: complete units, as evenly as possible.

        `what` names the items in errors. Raises ConfigError if a rank would get none.
        """
        units = -(-count // unit)
        if units < self.size:
            of = "" if unit == 1 else f" in units of {unit}"
            raise ConfigError(
                f"tensor_parallel_size {self.size}: {count} {what}{of} cannot be split over so many ranks: "
                f"choose at most {units}"
            )
        begin, end = (units * at // self.size * unit for at in (self.rank, self.rank + 1))
        return begin, min(end, count)

    def equal_split(self, count: int) -> tuple[int, int] | None:
        """This rank's [begin, end) of equal ranges; None if `count` is not a multiple of the number of ranks."""
        if count % self.size:
            return None
        return count // self.size * self.rank, count // self.size * (self.rank + 1)

    def q_heads(self, config: DecoderConfig) -> tuple[int, int]:
        """This rank's [begin, end) of the query heads. Raises ConfigError if the heads don't divide by the ranks."""
        found = self.equal_split(config.num_q_heads)
        if found is None or (config.num_kv_heads % self.size and self.size % config.num_kv_heads):
            raise ConfigError(
                f"tensor_parallel_size {self.size}: {config.family}'s {config.num_q_heads} query heads and "
                f"{config.num_kv_heads} KV heads do not divide among {self.size} ranks: choose {_choices(config)}"
            )
        return found

    def kv_heads(self, config: DecoderConfig) -> tuple[int, int]:
        """[begin, end) of the KV heads that this rank's query heads read. Ranks share them if there are too few."""
        self.q_heads(config)
        kv = config.num_kv_heads
        if kv >= self.size:
            return kv // self.size * self.rank, kv // self.size * (self.rank + 1)
        at = self.rank * kv // self.size
        return at, at + 1

    def experts(self, config: DecoderConfig) -> tuple[int, int]:
        """This rank's [begin, end) of the experts, if ranks hold complete ones. Raises ConfigError if that is
        impossible."""
        asked = f"expert_parallel with tensor_parallel_size {self.size}"
        if config.moe is None:
            raise ConfigError(f"{asked}: {config.family} has no experts: leave expert_parallel out")
        if self.size == 1:
            raise ConfigError(f"{asked}: experts are distributed over ranks: raise tensor_parallel_size")
        if config.moe.experts < self.size:
            raise ConfigError(
                f"{asked}: {config.family} has {config.moe.experts} experts: choose at most as many ranks"
            )
        if config.hidden % self.size:
            raise ConfigError(
                f"{asked}: {config.family}'s {config.hidden} hidden columns do not divide among {self.size} ranks: "
                "choose another number"
            )
        return expert_range(config.moe.experts, self.rank, self.size)

    def inner(self, down: Weight) -> tuple[int, int]:
        """This rank's [begin, end) of an MLP's inner columns: columns of `down`, rows of gate and up.

        The bounds are multiples of the unit at which the format of `down` can be split.
        """
        return self.split(down.shape[1], f"inner columns of {down.name or 'the MLP'}", column_unit(down))

    def vocabulary(self, config: DecoderConfig) -> tuple[int, int] | None:
        """This rank's [begin, end) of the rows of embedding and head; None if every rank holds all rows."""
        if self.size == 1:
            return None
        found = self.equal_split(config.vocab)
        if found is None and self.rank == 0:
            _log.info("every rank holds the complete vocabulary: %d does not divide by %d", config.vocab, self.size)
        return found

    def first(self) -> bool:
        """Whether this rank adds what must be added once: the bias of a row-parallel product."""
        return self.rank == 0


WHOLE = Shard()


def local_config(config: DecoderConfig, shard: Shard) -> DecoderConfig:
    """The configuration of one rank's decoder: its stage's layers, fewer heads, some experts. Raises ConfigError if
    that cannot be."""
    if shard.stages > 1:
        begin, end = shard.layers(config)
        config = replace(config, layers=config.layers[begin:end])
    moe = config.moe
    if shard.expert_parallel:
        first, _ = shard.experts(config)
        moe = None if moe is None else replace(moe, ranks=shard.size, first=first)
    if shard.size == 1:
        return config
    q, kv = shard.q_heads(config), shard.kv_heads(config)
    shard.split(config.intermediate, "inner columns of the MLP")
    return replace(config, moe=moe, num_q_heads=q[1] - q[0], num_kv_heads=kv[1] - kv[0])


def head_columns(heads: tuple[int, int], head_dim: int) -> tuple[int, int]:
    """The [begin, end) of rows of Q, K or V, or of columns of the output matrix, that belong to a range of heads."""
    return heads[0] * head_dim, heads[1] * head_dim


def _choices(config: DecoderConfig) -> str:
    q, kv = config.num_q_heads, config.num_kv_heads
    sizes = [n for n in range(1, q + 1) if q % n == 0 and (kv % n == 0 or n % kv == 0)]
    return _either([str(n) for n in sizes])


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
