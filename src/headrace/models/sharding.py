"""How a decoder is split over ranks: column-parallel QKV and gate/up, row-parallel output and down, vocabulary-parallel tables.

Every rank holds whole query heads with the KV heads they read, a run of the MLP's inner columns, and a run of the vocabulary.
What a rank computes of a row-parallel product is a term of a sum; `Group.all_reduce` adds the terms. (Megatron-LM,
arXiv:1909.08053.)

A family whose layers hold more than dense MLPs splits them with the same pieces: `Shard.inner` or `Shard.run` give a rank's
share, `take_columns` and `Weight.take` cut a matrix, and what a rank adds goes through the decoder's all-reduce. Experts are
split by their inner columns (`Assembly._expert_parts`), so that every rank has the same work whatever the router chooses;
whole experts a rank would be `shard.run(experts, "experts")`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from headrace.errors import ConfigError
from headrace.kernels.weight import Weight
from headrace.models.config import DecoderConfig
from headrace.quant.cutting import column_unit

__all__ = ["WHOLE", "Group", "Shard", "head_columns", "local_config"]

_log = logging.getLogger(__name__)


class Group(Protocol):
    """The collectives that a decoder calls: what `platforms.interface.Communicator` offers. They take part in a recorded step."""

    def all_reduce(self, x: Any) -> Any: ...

    def all_gather(self, x: Any, dim: int) -> Any: ...


@dataclass(frozen=True, slots=True)
class Shard:
    """This rank's part of every layer."""

    rank: int = 0
    size: int = 1

    def run(self, count: int, what: str, unit: int = 1) -> tuple[int, int]:
        """[begin, end) of `count` things for this rank: runs of whole units, as equal as they can be.

        Raises ConfigError where some rank would get none.
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

    def equal(self, count: int) -> tuple[int, int] | None:
        """[begin, end) of equal runs, None where there are none."""
        if count % self.size:
            return None
        return count // self.size * self.rank, count // self.size * (self.rank + 1)

    def q_heads(self, config: DecoderConfig) -> tuple[int, int]:
        """[begin, end) of the query heads. Raises ConfigError for a number that does not divide."""
        found = self.equal(config.num_q_heads)
        if found is None or (config.num_kv_heads % self.size and self.size % config.num_kv_heads):
            raise ConfigError(
                f"tensor_parallel_size {self.size}: {config.family}'s {config.num_q_heads} query heads and "
                f"{config.num_kv_heads} KV heads do not divide among {self.size} ranks: choose {_choices(config)}"
            )
        return found

    def kv_heads(self, config: DecoderConfig) -> tuple[int, int]:
        """[begin, end) of the KV heads that this rank's query heads read. Where there are fewer than ranks, several hold the same."""
        self.q_heads(config)
        kv = config.num_kv_heads
        if kv >= self.size:
            return kv // self.size * self.rank, kv // self.size * (self.rank + 1)
        at = self.rank * kv // self.size
        return at, at + 1

    def inner(self, down: Weight) -> tuple[int, int]:
        """[begin, end) of an MLP's inner columns: columns of `down`, which are cut where its format can be, rows of gate and up."""
        return self.run(down.shape[1], f"inner columns of {down.name or 'the MLP'}", column_unit(down))

    def vocabulary(self, config: DecoderConfig) -> tuple[int, int] | None:
        """[begin, end) of the rows of embedding and head; None where every rank holds them whole."""
        if self.size == 1:
            return None
        found = self.equal(config.vocab)
        if found is None and self.rank == 0:
            _log.info("every rank holds the whole vocabulary: %d does not divide by %d", config.vocab, self.size)
        return found

    def first(self) -> bool:
        """Whether this rank adds what must be added once: the bias of a row-parallel product."""
        return self.rank == 0


WHOLE = Shard()


def local_config(config: DecoderConfig, shard: Shard) -> DecoderConfig:
    """The decoder that one rank runs: fewer heads. Raises ConfigError for a size that the model cannot be split into."""
    if shard.size == 1:
        return config
    q, kv = shard.q_heads(config), shard.kv_heads(config)
    shard.run(config.intermediate, "inner columns of the MLP")
    return replace(config, num_q_heads=q[1] - q[0], num_kv_heads=kv[1] - kv[0])


def head_columns(heads: tuple[int, int], head_dim: int) -> tuple[int, int]:
    """Rows of Q, K or V, or columns of the output matrix, that belong to a run of heads."""
    return heads[0] * head_dim, heads[1] * head_dim


def _choices(config: DecoderConfig) -> str:
    q, kv = config.num_q_heads, config.num_kv_heads
    sizes = [n for n in range(1, q + 1) if q % n == 0 and (kv % n == 0 or n % kv == 0)]
    return _either([str(n) for n in sizes])


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
