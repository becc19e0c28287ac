"""Perplexity of a text in windows of 512 tokens: each starts with the BOS token, if the model has one, and the second
half of each is scored.

llama.cpp does the same, so the results compare (`--against` prints the ratio to its value). The model runs in this
process, or on any server that returns prompt logprobs (`--url`).
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from headrace.arguments import add_engine_options, engine_options
from headrace.bench.bench_report import BenchReport, ReportTable, add_outputs, facts, publish
from headrace.bench.plots import curve
from headrace.errors import ConfigError
from headrace.hub.catalogue import resolve_model
from headrace.server_address import http_address, no_answer, transport_fault
from headrace.tokenization.tokenizer import Tokenizer, load_tokenizer
from headrace.types import SamplingParams

__all__ = ["Perplexity", "Score", "configure", "perplexity", "run", "windows"]

Score = Callable[[Sequence[int]], Sequence["float | None"]]
"""Returns the log probability of each token of a window given those before it; the first is None."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """A perplexity. `error` is its standard error: that of the mean log probability, times the perplexity. `running` is
    the value after each window."""

    value: float
    error: float
    tokens: int
    running: tuple[float, ...]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="a directory, a .gguf file or a catalogue name; with --url: the tokenizer's"
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="UTF-8 text")
    parser.add_argument("--window", type=int, default=512, metavar="TOKENS", help="tokens of a window")
    parser.add_argument("--windows", type=int, metavar="N", help="use the first N windows at most")
    parser.add_argument("--against", type=float, metavar="VALUE", help="another engine's perplexity of the same text")
    parser.add_argument("--url", help="score with this server instead")
    parser.add_argument("--served-model", metavar="NAME", help="the model's name on the server; default: MODEL")
    parser.add_argument("--api-key", help="of that server")
    add_engine_options(parser)
    add_outputs(parser)


def run(args: argparse.Namespace) -> int:
    if args.window < 4:
        raise ConfigError(f"--window {args.window}: at least 4 tokens, of which the last is scored")
    url = http_address(args.url) if args.url else None
    text = _text(args.file)
    tokenizer = load_tokenizer(resolve_model(args.model))
    split = list(windows(tokenizer, text, args.window))[: args.windows]
    if not split:
        raise ConfigError(
            f"{args.file} is shorter than one window of {args.window} tokens: give a longer text or a smaller --window"
        )
    options = engine_options(args)
    if url and options:
        name = next(iter(options)).replace("_", "-")
        raise ConfigError(f"--{name} chooses how this process computes, but --url lets a server do so: leave one out")
    if url:
        found = perplexity(split, _remote(url, args.served_model or args.model, args.api_key), args.progress)
    else:
        from headrace.llm import LLM

        with LLM(args.model, **options) as llm:
            found = perplexity(split, lambda ids: _local(llm, ids), args.progress)
            options = {**options, "platform": llm.info.platform, "dtype": llm.info.dtype}
    publish(args, _report(args, found, options))
    return 0


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}: give a file of UTF-8 text") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: byte {error.start} is wrong") from error


def windows(tokenizer: Tokenizer, text: str, size: int) -> Iterator[list[int]]:
    """Consecutive windows of a text's tokens; BOS replaces the first token of each if the tokenizer adds it."""
    ids = tokenizer.encode(text, add_special_tokens=True)
    opens = tokenizer.bos_token_id if ids and ids[0] == tokenizer.bos_token_id else None
    for start in range(0, len(ids) - size + 1, size):
        window = ids[start : start + size]
        yield window if opens is None else [opens, *window[1:]]


def perplexity(
    split: Sequence[Sequence[int]],
    score: Score,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Perplexity:
    """exp of the mean negative log probability over the second half of every window, without its first token.

    llama.cpp scores the tokens that the logits of the second half predict; the first token of the half is predicted by
    the last logits of the first half.
    """
    values: list[float] = []
    running = []
    for window in split:
        values += [-value for value in score(window)[len(window) // 2 + 1 :] if value is not None]
        running.append(math.exp(statistics.fmean(values)))
        progress("windows", len(running), len(split))
    spread = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return Perplexity(running[-1], running[-1] * spread, len(values), tuple(running))


def _report(args: argparse.Namespace, found: Perplexity, options: dict[str, Any]) -> BenchReport:
    columns = ["model", "perplexity", "standard error", "windows", "tokens scored"]
    row = [args.model, f"{found.value:.4f}", f"{found.error:.4f}", str(len(found.running)), str(found.tokens)]
    data = {
        "model": args.model,
        "perplexity": found.value,
        "standard_error": found.error,
        "window": args.window,
        "tokens_scored": found.tokens,
        "running": list(found.running),
    }
    if args.against:
        columns += ["against", "ratio"]
        row += [f"{args.against:.4f}", f"{found.value / args.against:.4f}"]
        data |= {"against": args.against, "ratio": found.value / args.against}
    count = len(found.running)
    ticks = [(at, str(at + 1)) for at in sorted({0, count // 4, count // 2, 3 * count // 4, count - 1})]
    plot = curve(found.running, ticks, "perplexity of the text up to each window")
    table = ReportTable(f"windows of {args.window} tokens of {args.file.name}", columns, [row])
    where = {"endpoint": args.url} if args.url else options
    return BenchReport(args.label, data, [table], [plot], facts() | {"model": args.model, **where})


def _local(llm: Any, ids: Sequence[int]) -> list[float | None]:
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    answer = llm.generate([list(ids)], params)[0]
    return [entry.logprob for entry in answer.prompt_logprobs]


def _remote(url: str, model: str, api_key: str | None) -> Score:
    client = httpx.Client(headers={"Authorization": f"Bearer {api_key}"} if api_key else {}, timeout=None)

    def score(ids: Sequence[int]) -> list[float | None]:
        body = {"model": model, "prompt": list(ids), "max_tokens": 0, "echo": True, "logprobs": 0, "temperature": 0}
        try:
            response = client.post(f"{url}/v1/completions", json=body)
            if response.status_code != 200:
                raise ConfigError(
                    f"{url} does not score {model!r}: HTTP {response.status_code} {response.text[:300]!r}"
                )
            found: list[float | None] = response.json()["choices"][0]["logprobs"]["token_logprobs"]
        except httpx.TransportError as error:
            raise ConfigError(no_answer(url, transport_fault(error))) from None
        except (
            httpx.HTTPError,
            httpx.InvalidURL,
            ValueError,
            KeyError,
            TypeError,
            IndexError,
            RecursionError,
        ) as error:
            raise ConfigError(f"{url} gives no prompt logprobs: {type(error).__name__}: {error}") from None
        return found

    return score
