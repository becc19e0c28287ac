"""Perplexity of a text: windows of 512 tokens, each opened by the BOS token where the model has one, the second half of each scored.

That is llama.cpp's way, so the figures compare. In this process, or against any server that returns prompt logprobs (`--url`).
"""

from __future__ import annotations

import argparse
import json
import math
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headrace.engine.catalogue import resolve_model
from headrace.engine.tokenizer import Tokenizer, load_tokenizer
from headrace.errors import ConfigError
from headrace.types import SamplingParams

__all__ = ["Score", "configure", "perplexity", "run", "windows"]

Score = Callable[[Sequence[int]], Sequence["float | None"]]
"""Log probability of each token of a window given those before it; the first is None."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a directory, a .gguf file or a catalogue name; with --url: the tokenizer's")
    parser.add_argument("file", type=Path, help="UTF-8 text")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", type=int, help="at most so many")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--url", help="score with this server instead")
    parser.add_argument("--served-model", help="the name that the server knows; default: MODEL")


def run(args: argparse.Namespace) -> int:
    tokenizer = load_tokenizer(resolve_model(args.model))
    cut = list(windows(tokenizer, args.file.read_text(encoding="utf-8"), args.window))[: args.windows]
    if not cut:
        raise ConfigError(
            f"{args.file} is shorter than one window of {args.window} tokens: give a longer text or a smaller --window"
        )
    if args.url:
        value = perplexity(cut, _remote(args.url, args.served_model or args.model))
    else:
        from headrace.llm import LLM

        with LLM(args.model, dtype=args.dtype, kv_dtype=args.kv_dtype) as llm:
            value = perplexity(cut, lambda ids: _local(llm, ids))
    print(f"perplexity {value:.4f} over {len(cut)} windows of {args.window} tokens")
    return 0


def windows(tokenizer: Tokenizer, text: str, size: int) -> Iterator[list[int]]:
    """Consecutive windows; the first token of each gives way to BOS where the tokenizer adds one."""
    ids = tokenizer.encode(text, add_special_tokens=True)
    opens = tokenizer.bos_token_id if ids and ids[0] == tokenizer.bos_token_id else None
    for start in range(0, len(ids) - size + 1, size):
        window = ids[start : start + size]
        yield window if opens is None else [opens, *window[1:]]


def perplexity(cut: Sequence[Sequence[int]], score: Score) -> float:
    """exp of the mean negative log probability over the second half of every window, less its first token.

    llama.cpp scores the tokens that logits of the second half predict, and no logits predict the first of them.
    """
    total, count = 0.0, 0
    for window in cut:
        scored = score(window)[len(window) // 2 + 1 :]
        total -= sum(value for value in scored if value is not None)
        count += len(scored)
    return math.exp(total / count)


def _local(llm: object, ids: Sequence[int]) -> list[float | None]:
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    answer = llm.generate([list(ids)], params)[0]  # type: ignore[attr-defined]
    return [entry.logprob for entry in answer.prompt_logprobs]


def _remote(url: str, model: str) -> Score:
    def score(ids: Sequence[int]) -> list[float | None]:
        body = {"model": model, "prompt": list(ids), "max_tokens": 0, "echo": True, "logprobs": 0, "temperature": 0}
        request = urllib.request.Request(
            f"{url.rstrip('/')}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as response:
            found: list[float | None] = json.load(response)["choices"][0]["logprobs"]["token_logprobs"]
        return found

    return score
