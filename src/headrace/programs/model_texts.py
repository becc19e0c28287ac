"""What all runs on a model share about its texts: tokens of constants, and the template between messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.programs.crossings import Crossings
from headrace.programs.rendering import Rendered
from headrace.programs.token_path import PathEncoder, PathTokenizer
from headrace.tokenization.chat_inputs import ChatInputs

__all__ = ["ModelTexts", "ProgramTokenizer"]


class ProgramTokenizer(PathTokenizer, Protocol):
    """The part of a tokenizer that programs use."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...

    async def apply_chat_template_async(self, inputs: ChatInputs) -> str: ...


class ModelTexts:
    """One serves all runs on a model, in one event loop."""

    def __init__(self, tokenizer: ProgramTokenizer) -> None:
        self.encoder = PathEncoder(tokenizer)
        self.crossings = Crossings(Rendered(tokenizer.apply_chat_template_async).alone)
