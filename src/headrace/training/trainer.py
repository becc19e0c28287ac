"""The training loop: AdamW with warm-up and a cosine, gradients summed over a few answers, states from which it goes
on."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from headrace.errors import CheckpointError
from headrace.training.acceptance_report import HeldOutAcceptance
from headrace.training.answers import Answer
from headrace.training.settings import least_tokens
from headrace.training.training_head import Example, TrainingHead

__all__ = ["Reader", "Recipe", "Trainer", "Watcher"]

_WARM_UP, _LAST_RATE = 0.04, 0.1
"""The share of the steps in which the rate rises; the last rate, as a part of the highest."""
_CLIP = 1.0
_BETAS = (0.9, 0.95)
_HEAD, _OPTIMIZER, _STEP = "head.", "optimizer.", "step"
"""Prefixes of the tensors of a saved state, and the name of the number of steps in its metadata."""
_HALVED = torch.cpu._is_avx512_bf16_supported()
"""Products of the loss and its gradients are of bfloat16 factors with sums in float32, where the processor has them:
they take a quarter of the time. Weights, states and gradients are kept in float32."""
_SAVE_EVERY = 60.0
"""Seconds. Saving changes no number."""
_REPORTS, _APART, _REPORTED = 10, 32, 16
"""Reports of the acceptance at most, the steps between two at least, and the answers of each; the last one has all that
are held out."""


class Reader(Protocol):
    """The part of `target_reader.TargetReader` that training uses."""

    def read(self, tokens: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]: ...


class Watcher(Protocol):
    """Sees how the training goes on, and ends it early."""

    def step(self, done: int, total: int, loss: float) -> None: ...

    def acceptance(self, done: int, total: int, found: HeldOutAcceptance) -> None: ...

    def stopped(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Recipe:
    epochs: int
    batch: int
    """Answers of one step."""
    rate: float
    seed: int


class Trainer:
    """Trains one head. Everything that is drawn depends on the seed and the step alone, so a training that goes on from
    a state gives what it would have given without the break."""

    def __init__(
        self,
        head: TrainingHead,
        reader: Reader,
        answers: Sequence[Answer],
        recipe: Recipe,
        file: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`file`: where states are kept; if it exists, the training goes on from it. Raises CheckpointError for a file
        that is no state of this head."""
        self.head, self._reader, self._recipe, self._file, self._clock = head, reader, recipe, file, clock
        usable = [one for one in answers if len(one.tokens) >= least_tokens(head.drafts)]
        self._train = [one for one in usable if not one.held_out]
        self._held_out = [one for one in usable if one.held_out]
        self.steps = recipe.epochs * -(-len(self._train) // recipe.batch)
        self.done = 0
        self._optimizer = torch.optim.AdamW(head.parameters(), lr=recipe.rate, betas=_BETAS, weight_decay=0.0)
        if file.exists():
            self._restore()

    @property
    def sizes(self) -> tuple[int, int]:
        """(answers to train on, answers held out)."""
        return len(self._train), len(self._held_out)

    def run(self, watcher: Watcher) -> bool:
        """Train to the end; False if the watcher has stopped it. The state is saved in both cases."""
        saved = self._clock()
        while self.done < self.steps:
            loss = self._step()
            self.done += 1
            watcher.step(self.done, self.steps, loss)
            if self.done % max(_APART, self.steps // _REPORTS) == 0 and self.done < self.steps:
                watcher.acceptance(self.done, self.steps, self.measure(_REPORTED))
            if watcher.stopped():
                self.save()
                return False
            if self._clock() - saved > _SAVE_EVERY:
                self.save()
                saved = self._clock()
        self.save()
        return True

    @torch.no_grad()
    def measure(self, count: int | None = None) -> HeldOutAcceptance:
        """The acceptance on the first `count` answers that are held out; None: on all."""
        found = HeldOutAcceptance(self.head.drafts)
        for one in self._held_out[:count]:
            found.add(self.head.agreement(self._example(one)), one.temperature)
        return found

    def save(self) -> None:
        """Write the state: the file is the old state or the new one, whenever the process ends."""
        tensors = {f"{_HEAD}{name}": tensor for name, tensor in self.head.state_dict().items()}
        for number, kept in self._optimizer.state_dict()["state"].items():
            tensors |= {f"{_OPTIMIZER}{number}.{name}": tensor for name, tensor in kept.items()}
        # Tensors of a safetensors file share no memory.
        copies = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
        part = self._file.with_suffix(".part")
        save_file(copies, part, {_STEP: str(self.done)})
        os.replace(part, self._file)

    def _restore(self) -> None:
        try:
            with safe_open(self._file, "pt") as file:
                done = int(file.metadata()[_STEP])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no dict
            moments: dict[int, dict[str, torch.Tensor]] = {}
            for name in [name for name in tensors if name.startswith(_OPTIMIZER)]:
                number, key = name.removeprefix(_OPTIMIZER).split(".")
                moments.setdefault(int(number), {})[key] = tensors.pop(name)
            self.head.load_state_dict({name.removeprefix(_HEAD): tensor for name, tensor in tensors.items()})
            self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": moments})
            self.done = done
        except Exception as error:  # safetensors and torch raise errors of many classes for a damaged file
            raise CheckpointError(f"{self._file}: not a state of this training: {error}") from None

    def _step(self) -> float:
        total, weights = 0.0, 0.0
        generator = self._generator(f"step {self.done}")
        for one in self._batch():
            example = self._example(one)
            with torch.autocast("cpu", torch.bfloat16, enabled=_HALVED):
                loss, weight = self.head.loss(example, generator)
            if weight:
                loss.backward()  # type: ignore[no-untyped-call]
                total, weights = total + float(loss.detach()), weights + weight
        for group in self._optimizer.param_groups:
            group["lr"] = self._recipe.rate * self._share()
        for parameter in self.head.parameters():
            if parameter.grad is not None:
                parameter.grad /= max(weights, 1.0)
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), _CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return total / max(weights, 1.0)

    def _batch(self) -> list[Answer]:
        """The answers of the next step, out of an order that is new in each epoch."""
        batch = self._recipe.batch
        per_epoch = -(-len(self._train) // batch)
        epoch, at = divmod(self.done, per_epoch)
        generator = self._generator(f"order {epoch}")
        order = torch.randperm(len(self._train), generator=generator)
        return [self._train[number] for number in order[at * batch : (at + 1) * batch].tolist()]

    def _generator(self, purpose: str) -> torch.Generator:
        """Of 32 bits that depend on all of them: torch's generator reads no more of a seed."""
        return torch.Generator().manual_seed(random.Random(f"{purpose} {self._recipe.seed}").getrandbits(32))

    def _share(self) -> float:
        """The learning rate of the next step, as a part of the highest."""
        warm = max(1, round(_WARM_UP * self.steps))
        if self.done < warm:
            return (self.done + 1) / warm
        fallen = (1 + math.cos(math.pi * (self.done - warm) / max(1, self.steps - warm))) / 2
        return _LAST_RATE + (1 - _LAST_RATE) * fallen

    def _example(self, one: Answer) -> Example:
        tokens = [*one.prompt, *one.tokens]
        features, final = self._reader.read(tokens)
        return Example(torch.tensor(tokens), len(one.prompt), features, final, one.temperature, one.seed)
