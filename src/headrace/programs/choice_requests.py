"""`select` as few requests: which tokens each computes and scores.

The choices' first tokens all follow the same prefix, so one row of logits scores them all: one request has them as
rivals of its own. Only what follows a first token needs a request for each choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.client.api import PromptScores

__all__ = ["ChoiceRequest", "choice_requests", "choice_rows"]

Ids = tuple[int, ...]


class ChoiceRequest(NamedTuple):
    ids: Ids
    """Tokens behind the prefix."""
    start: int
    """The first of them that is scored."""
    rivals: Ids = ()
    """Tokens that are scored in the place of the first."""


def choice_requests(choices: Iterable[Ids], most_rivals: int) -> list[ChoiceRequest]:
    """The requests that score all choices, none of which is empty."""
    distinct = list(dict.fromkeys(choices))
    if not most_rivals:
        return [ChoiceRequest(one, 0) for one in distinct]
    firsts = list(dict.fromkeys(one[0] for one in distinct))
    longer = [one for one in distinct if len(one) > 1]
    found = []
    while firsts:
        host = next((one for one in longer if one[0] in firsts), (firsts[0],))
        longer = [one for one in longer if one != host]
        firsts.remove(host[0])
        rivals, firsts = firsts[:most_rivals], firsts[most_rivals:]
        found.append(ChoiceRequest(host, 0, tuple(rivals)))
    return found + [ChoiceRequest(one, 1) for one in longer]


def choice_rows(
    choices: Iterable[Ids], requests: Sequence[ChoiceRequest], scores: Sequence[PromptScores]
) -> list[list[float]]:
    """For each choice the log-probabilities of its tokens."""
    firsts: dict[int, float] = {}
    rests: dict[Ids, list[float]] = {}
    for request, score in zip(requests, scores, strict=True):
        if request.start == 0:
            firsts[request.ids[0]] = score.own[0]
            firsts.update(zip(request.rivals, score.rivals, strict=True))
        rests[request.ids] = score.own[1 - request.start :]
    return [[firsts[one[0]], *rests.get(one, ())] for one in choices]
