"""`select`: which of several texts a model finds most likely, by the log-probabilities of their tokens.

Methods, with the names that other languages use:

- `greedy` (`greedy_token_selection`): token by token, only the choices with the best token stay; a choice that has
  ended counts with its own mean. Ties are decided by the sum.
- `mean` (`token_length_normalized`): the highest mean.
- `sum`: the most likely text as a whole.
- `unconditional` (`unconditional_likelihood_normalized`): the highest mean of how much more likely each token is here
  than at the beginning of a text.

Of equal choices the first is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.lang.plan import SelectMethod

__all__ = ["METHOD_NAMES", "best_choice"]

METHOD_NAMES: Mapping[str, SelectMethod] = {
    "greedy": "greedy",
    "mean": "mean",
    "sum": "sum",
    "unconditional": "unconditional",
    "greedy_token_selection": "greedy",
    "token_length_normalized": "mean",
    "unconditional_likelihood_normalized": "unconditional",
}
_EQUAL = 1e-6
"""Servers compute the same prefix in different batches: differences below this are none."""


def best_choice(
    method: SelectMethod, here: Sequence[Sequence[float]], alone: Sequence[Sequence[float]] = ()
) -> tuple[int, list[float]]:
    """The index of the best choice, and a score for each. `here` and `alone` have a log-probability for each token of
    each choice: behind the prompt, and (for `unconditional`) behind nothing."""
    if method == "greedy":
        return _greedy(here), [_mean(row) for row in here]
    if method == "sum":
        scores = [sum(row) for row in here]
    elif method == "mean":
        scores = [_mean(row) for row in here]
    else:
        scores = [
            _mean([there - base for there, base in zip(row, bases, strict=True)])
            for row, bases in zip(here, alone, strict=True)
        ]
    best = max(scores)
    return next(index for index, score in enumerate(scores) if score >= best - _EQUAL), scores


def _mean(row: Sequence[float]) -> float:
    return sum(row) / len(row) if row else float("-inf")


def _greedy(rows: Sequence[Sequence[float]]) -> int:
    left = list(range(len(rows)))
    for column in range(max(map(len, rows))):
        found = {index: _at(rows[index], column) for index in left}
        best = max(found.values())
        left = [index for index in left if found[index] >= best - _EQUAL]
        if len(left) == 1:
            return left[0]
    sums = [sum(rows[index]) for index in left]
    best = max(sums)
    return next(index for index, total in zip(left, sums, strict=True) if total >= best - _EQUAL)


def _at(row: Sequence[float], column: int) -> float:
    return row[column] if column < len(row) else _mean(row)
