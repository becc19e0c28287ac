"""The data that heads are trained on: prompts made of a text, and the model's own answers to them.

Every second answer is greedy, the others are drawn at temperature 0.7. Since the model itself writes them, the tokens
of an answer are the target's own samples: the head's drafts are accepted where they equal them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.errors import CheckpointError, ConfigError
from headrace.llm import LLM
from headrace.tokenization.chat_inputs import ChatInputs
from headrace.tokenization.tokenizer import Tokenizer
from headrace.training.settings import FEWEST
from headrace.types import SamplingParams

__all__ = [
    "ANSWERS",
    "TEMPERATURE",
    "Answer",
    "PromptMaker",
    "complete_lines",
    "load_answers",
    "parse_answers",
    "write_answers",
]

ANSWERS = "answers.jsonl"
"""The file of a training's answers, in its folder."""
TEMPERATURE = 0.7
_USES = 4
"""Prompts of one piece."""
_AT_ONCE = 128
"""Answers between two writes of the file."""
_QUESTIONS = (
    "Explain this text:\n\n{}",
    "Summarize this text:\n\n{}",
    "Continue this text:\n\n{}",
    "Rewrite this text in simple words:\n\n{}",
    "Write three questions about this text, and answer them:\n\n{}",
    "What should a beginner know about this?\n\n{}",
    "Give an example for this:\n\n{}",
)
_PLAIN = 0.2
"""The share of prompts that are a piece of text alone, without a question."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt and the model's answer, as token ids."""

    prompt: list[int]
    tokens: list[int]
    temperature: float
    seed: int
    held_out: bool
    """For measuring acceptance alone. No piece of text is in both parts."""


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """Makes the n-th prompt, which depends on n, the pieces and the seed alone."""

    pieces: Sequence[str]
    tokenizer: Tokenizer
    seed: int

    def check(self, count: int) -> None:
        """Raises ConfigError if there is too little text for `count` prompts."""
        if len(self.pieces) < FEWEST or count > _USES * len(self.pieces):
            raise ConfigError(
                f"--text: it gives {len(self.pieces)} pieces, each for {_USES} prompts at most, and {count} answers "
                f"need at least {max(FEWEST, -(-count // _USES))} pieces: give more text or fewer --answers"
            )

    def prompt(self, number: int) -> list[int]:
        rng, piece = random.Random(f"prompt {self.seed} {number}"), self.pieces[number % len(self.pieces)]
        if not self.tokenizer.has_chat_template or rng.random() < _PLAIN:
            return self.tokenizer.encode(piece)
        message = {"role": "user", "content": rng.choice(_QUESTIONS).format(piece)}
        return self.tokenizer.encode_chat(self.tokenizer.apply_chat_template(ChatInputs([message])))

    def temperature(self, number: int) -> float:
        at, use = number % len(self.pieces), number // len(self.pieces)
        return 0.0 if (at + use) % 2 else TEMPERATURE

    def held_out(self, number: int) -> bool:
        """Two neighbours of every 32 pieces: one of each temperature."""
        return number % len(self.pieces) // 2 % (FEWEST // 2) == FEWEST // 2 - 1


def write_answers(
    llm: LLM, maker: PromptMaker, file: Path, count: int, most: int, report: Callable[[int, int], None]
) -> None:
    """Append answers of `most` tokens at most to `file` until it has `count`; those that it has are kept, so this may
    be interrupted. `report(answers, tokens)` tells how far it is. Raises what `LLM.generate` raises."""
    done = len(load_answers(file)) if file.exists() else 0
    for start in range(done, count, _AT_ONCE):
        numbers = range(start, min(count, start + _AT_ONCE))
        prompts = [maker.prompt(number) for number in numbers]
        params = [
            SamplingParams(max_tokens=most, temperature=maker.temperature(number), seed=maker.seed + number)
            for number in numbers
        ]
        lines, tokens = [], 0
        for number, output in zip(numbers, llm.generate(prompts, params, progress=False), strict=True):
            choice = output.outputs[0]
            if choice.error is not None:
                raise ConfigError(f"the model failed to answer prompt {number}: {choice.error}")
            one = Answer(
                output.prompt_token_ids,
                choice.token_ids,
                params[number - start].temperature,
                maker.seed + number,
                maker.held_out(number),
            )
            lines.append(json.dumps(asdict(one)) + "\n")
            tokens += len(choice.token_ids)
        with file.open("a") as out:
            out.write("".join(lines))
        report(numbers.stop, tokens)


def load_answers(file: Path) -> list[Answer]:
    """The answers of a file; a last line that was not written to its end is cut off the file. Raises CheckpointError
    for another content."""
    data = file.read_bytes()
    complete = complete_lines(data)
    if len(complete) < len(data):
        file.write_bytes(complete)
    return parse_answers(complete, file)


def complete_lines(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]


def parse_answers(lines: bytes, file: Path) -> list[Answer]:
    """The answers of the lines of `file`. Raises CheckpointError for another content."""
    try:
        answers = [Answer(**json.loads(line)) for line in lines.splitlines()]
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{file}: not the answers that a training has written: {error}") from None
    for number, one in enumerate(answers):
        lists = (one.prompt, one.tokens)
        sound = all(isinstance(x, list) and all(type(token) is int for token in x) for x in lists)
        if not (sound and type(one.temperature) is float and type(one.seed) is int and type(one.held_out) is bool):
            raise CheckpointError(f"{file}: not the answers that a training has written: see line {number + 1}")
    return answers
