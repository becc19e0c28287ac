"""Bias, bans and masks of the rows that have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from headrace.core.matcher import Matcher
from headrace.sampling import SamplingParams

__all__ = ["BatchConstraints", "Constraints", "gather"]

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
NO_INTS: Ints = np.zeros(0, np.int32)
NO_FLOATS: Floats = np.zeros(0, np.float32)


class MaskSource(Protocol):
    """The members of a matcher that decide the next token."""

    @property
    def mask(self) -> npt.NDArray[np.uint32]: ...

    @property
    def accepting(self) -> bool: ...


class _Snapshot(NamedTuple):
    mask: npt.NDArray[np.uint32]
    accepting: bool


class Constraints(NamedTuple):
    """The constraints of one sequence, ready for a batch."""

    tokens: Ints
    values: Floats
    banned: Ints
    """End and stop tokens, while fewer than min_tokens have been generated."""
    banned_before: int
    """Index in the sequence of the first token that may end it."""
    mask: npt.NDArray[np.uint32] | None
    """The tokens of `allowed_token_ids`."""
    matcher: MaskSource | None = None
    other_stops: npt.NDArray[np.uint32] | None = None
    """Bits of the stop tokens that are not ends of the grammar: they are masked until the text is complete. None if
    there are none."""

    @staticmethod
    def of(
        params: SamplingParams,
        stops: frozenset[int],
        prompt_len: int,
        vocab_size: int,
        matcher: Matcher | None = None,
        eos_token_ids: Sequence[int] = (),
        never: Sequence[int] = (),
    ) -> Constraints | None:
        """The constraints of a request; None if no row of the sequence needs any. `never`: tokens that are banned."""
        listed = params.logit_bias or params.allowed_token_ids is not None or never
        if not (matcher is not None or listed or (params.min_tokens and stops)):
            return None
        mask = None
        if params.allowed_token_ids is not None:
            mask = _bits(params.allowed_token_ids, vocab_size)
        return Constraints(
            np.array([*(token for token, _ in params.logit_bias), *never], np.int32),
            np.array([*(value for _, value in params.logit_bias), *[-np.inf] * len(never)], np.float32),
            np.array(sorted(token for token in stops if 0 <= token < vocab_size), np.int32),
            prompt_len + params.min_tokens,
            mask,
            matcher,
            None if matcher is None or not (others := stops.difference(eos_token_ids)) else _bits(others, vocab_size),
        )

    def after(self, matcher: Matcher) -> Constraints:
        """The constraints of a row whose text is that of another matcher, as it is now."""
        return self._replace(matcher=_Snapshot(matcher.mask.copy(), matcher.accepting))

    def allowed(self) -> npt.NDArray[np.uint32] | None:
        """The mask for the next token; None if every token is allowed."""
        matcher = self.matcher
        if matcher is None:
            return self.mask
        found = matcher.mask
        if self.other_stops is not None and not matcher.accepting:
            found = found & ~self.other_stops
        return found if self.mask is None else found & self.mask


def _bits(tokens: Iterable[int], vocab_size: int) -> npt.NDArray[np.uint32]:
    """[ceil(V / 32)]: bit t is set for each token t."""
    bits = np.zeros(-(-vocab_size // 32) * 32, np.bool_)
    bits[list(tokens)] = True
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


class BatchConstraints(NamedTuple):
    """The constraints of a batch, in the form of the fields of `SamplingBatch`."""

    row: Ints
    token: Ints
    value: Floats
    allowed: npt.NDArray[np.uint32] | None
    allowed_row: Ints | None


NOTHING = BatchConstraints(NO_INTS, NO_INTS, NO_FLOATS, None, None)


def gather(rows: list[tuple[int, int, Constraints]], num_rows: int) -> BatchConstraints:
    """The constraints of a batch. `rows`: (row, index of the token to be sampled, constraints)."""
    if not rows:
        return NOTHING
    tokens: list[Ints] = []
    values: list[Floats] = []
    owners: list[int] = []
    masks: list[npt.NDArray[np.uint32]] = []
    allowed_row = np.full(num_rows, -1, np.int32)
    for row, index, own in rows:
        if len(own.tokens):
            tokens.append(own.tokens)
            values.append(own.values)
            owners.extend([row] * len(own.tokens))
        if index < own.banned_before and len(own.banned):
            tokens.append(own.banned)
            values.append(np.full(len(own.banned), -np.inf, np.float32))
            owners.extend([row] * len(own.banned))
        mask = own.allowed()
        if mask is not None:
            allowed_row[row] = len(masks)
            masks.append(mask)
    return BatchConstraints(
        np.array(owners, np.int32),
        np.concatenate(tokens) if tokens else NO_INTS,
        np.concatenate(values) if values else NO_FLOATS,
        np.stack(masks) if masks else None,
        allowed_row if masks else None,
    )
