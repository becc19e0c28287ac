"""Engines whose drafts come from a model, with a policy that speculates whatever it costs."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from server_harness import VOCAB, make_model

from headrace.engine import startup
from headrace.engine.head_drafter import HeadDrafter
from headrace.engine.head_passes import HeadPasses
from headrace.engine.head_plans import HeadPass
from headrace.engine.startup import Engine, build_on
from headrace.errors import PlatformError
from headrace.platforms.interface import Pending
from headrace.speculation import model_speculator
from headrace.speculation.acceptance import AcceptanceCounts
from headrace.speculation.model_speculator import ModelDrafts, ModelSpeculator
from headrace.speculation.policy import DraftingTime, SpeculationPolicy, StepChoice, StepShape


class EagerPolicy(SpeculationPolicy):
    """Admits any number of drafts, drawn at random."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def choose(
        self,
        shape: StepShape,
        survivals: Sequence[Sequence[float]],
        contexts: Sequence[int] = (),
        drafting: DraftingTime | None = None,
        again: bool = False,
    ) -> StepChoice:
        return StepChoice(shape, self.wanted(shape, survivals), 0, 0.0, 0.0)

    def wanted(
        self, shape: StepShape, survivals: Sequence[Sequence[float]], drafting: DraftingTime | None = None
    ) -> list[int]:
        return [self._random.randint(0, len(each)) for each in survivals]


class Built:
    """The engines that were built since `watch`."""

    def __init__(self) -> None:
        self.engines: list[Engine] = []

    @property
    def model(self) -> HeadDrafter:
        draft = self.engines[-1].draft
        assert draft is not None
        return draft.model

    @property
    def counts(self) -> AcceptanceCounts:
        """Of the last engine's drafts by the model."""
        found, blocks = AcceptanceCounts(), self.engines[-1].blocks
        for method in self.engines[-1].core.stats().speculation.methods:
            if method.method == ("draft" if blocks is None else blocks.method):
                found.rounds, found.drafted, found.accepted = method.rounds, sum(method.drafted), sum(method.accepted)
        return found

    def check(self) -> None:
        """The draft model of the last engine knows no sequence, and holds no block that it could not give away."""
        model = self.model
        assert not model._sequences
        assert model.free_blocks == self.engines[-1].info.num_blocks - 1
        assert model.failures == 0


def watch(patch: pytest.MonkeyPatch, eager: bool = True) -> Built:
    """Keep the engines that are built from now on. `eager`: they speculate whatever it costs."""
    built = Built()

    def build(*args: Any, **named: Any) -> Engine:
        built.engines.append(build_on(*args, **named))
        return built.engines[-1]

    patch.setattr(startup, "build_on", build)
    if eager:
        speculate_always(patch, 7)
    return built


def speculate_always(patch: pytest.MonkeyPatch, seed: int) -> None:
    """Engines that are built from now on draft whatever it costs, so that their drafts depend on no time."""
    patch.setattr(model_speculator, "_FUNDS", math.inf)
    patch.setattr(startup, "ModelSpeculator", lambda *args: ModelSpeculator(*args, policy=EagerPolicy(seed)))


def blocks_of_waiting(patch: pytest.MonkeyPatch, built: Built) -> list[int]:
    """Keep, for each round, the number of the drafter's blocks that preempted sequences hold."""
    held, draft = list[int](), HeadDrafter.draft

    def counting(model: HeadDrafter, wanted: Sequence[tuple[str, int]]) -> ModelDrafts:
        running = {seq.id for seq in built.engines[-1].core._scheduler._running.all()}
        held.append(sum(len(known.blocks) for name, known in model._sequences.items() if name not in running))
        return draft(model, wanted)

    patch.setattr(HeadDrafter, "draft", counting)
    return held


class FailedPass:
    """The result of a pass in which a kernel failed."""

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        raise PlatformError("a kernel failed")


def fail_following(patch: pytest.MonkeyPatch, built: Built) -> None:
    """The passes of an engine that is built behind the first 20 fail, when something reads their results."""
    calls, following = [0], HeadPasses.following

    def failing(passes: HeadPasses, step: HeadPass, depth: int) -> Pending:
        found, calls[0] = following(passes, step, depth), calls[0] + bool(built.engines)
        return FailedPass() if calls[0] > 20 else found

    patch.setattr(HeadPasses, "following", failing)


def save_draft(directory: Path, **more: Any) -> Path:
    """A random model with the vocabulary of the tests' target, and weights of its own."""
    directory.mkdir(exist_ok=True)
    make_model(directory)
    sizes = {"vocab_size": VOCAB, "max_position_embeddings": 512, "num_hidden_layers": 1, "hidden_size": 32}
    tiny_models.save("qwen3", directory, **{**sizes, **more})
    return directory
