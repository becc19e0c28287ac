"""What `headrace top` shows, as lines of at most so many columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.cli.top_reading import Reading, Window

__all__ = ["top_lines"]

_BAR = 30
_STATES = {"decode": "decode", "prefill": "prefill", "waiting": "waiting", "open": "open"}


def top_lines(url: str, window: Window, fault: str, width: int, height: int) -> list[str]:
    """Everything from the header to as many requests as fit. `fault`: why the server does not answer now; the last
    reading stays on the screen."""
    lines = [*_header(url, window.last, fault)]
    if window.last is not None:
        lines += [*_body(window, window.last)]
        lines += [*_requests(window.last.state, max(0, height - len(lines) - 3))]
    return [_cut(line, width) for line in lines[:height]]


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _header(url: str, last: Reading | None, fault: str) -> Iterator[str]:
    model = {} if last is None else last.state.get("model", {})
    named = " ".join(str(model[part]) for part in ("id", "platform", "dtype") if part in model)
    yield f"Headrace at {url}  {named}".rstrip()
    if fault:
        yield f"no answer: {fault}{'' if last is None else '; below is what it said last'}"
    yield ""


def _models(last: Reading) -> Iterator[str]:
    """Those of a server with several. Rates are of all of them; requests and blocks of the last that was used."""
    loaded = {dict(labels)["model"]: value for labels, value in last.samples.get("headrace_model_loaded", {}).items()}
    if len(loaded) > 1:
        waiting = {name: int(last.value("headrace_model_requests_waiting", model=name)) for name in loaded}
        shown = [
            name + (" (loaded)" if loaded[name] else "") + (f" ({waiting[name]} wait for it)" if waiting[name] else "")
            for name in loaded
        ]
        yield f"{'models':<13}{', '.join(shown)}; --model shows one"


def _body(window: Window, last: Reading) -> Iterator[str]:
    state, wastes = last.state, last.state.get("wastes", {})
    yield from _models(last)
    waiting = int(last.value("headrace_waiting_prompt_tokens"))
    yield (
        f"{'requests':<13}{state.get('running_count', 0)} of {state.get('slots', 0)} running, "
        f"{state.get('waiting_count', 0)} waiting ({waiting} prompt tokens without an answer)"
    )
    yield f"{'tokens/s':<13}{_rates(window)}"
    yield f"{'TTFT':<13}{_quantiles(window, 'headrace_time_to_first_token_seconds')}"
    yield f"{'TPOT':<13}{_quantiles(window, 'headrace_inter_token_latency_seconds')}"
    yield f"{'KV blocks':<13}{_blocks(state.get('blocks', {}))}"
    yield f"{'prefix hits':<13}{_hits(window, last)}"
    yield f"{'drafts':<13}{_drafts(window, last)}"
    yield f"{'device':<13}{_bar(wastes.get('device_busy', 0.0))} busy {wastes.get('device_busy', 0.0):.0%}"
    totals = state.get("totals", {})
    restarts = f", {totals['restarts']} restarts of the engine" if totals.get("restarts") else ""
    yield f"{'':<13}{totals.get('preemptions', 0)} preemptions{restarts}"


def _rates(window: Window) -> str:
    parts = (
        ("generated", "headrace_generation_tokens_total"),
        ("prompt", "headrace_prompt_tokens_total"),
        ("of it cached", "headrace_cached_tokens_total"),
    )
    rates = [(name, window.rate(metric)) for name, metric in parts]
    return "  ".join(f"{'-' if rate is None else f'{rate:.1f}'} {name}" for name, rate in rates)


def _quantiles(window: Window, name: str) -> str:
    found = [(share, window.quantile(name, share)) for share in (0.5, 0.9, 0.99)]
    return "  ".join(f"p{share * 100:.0f} {_seconds(value)}" for share, value in found)


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _bar(share: float) -> str:
    full = max(0, min(_BAR, round(share * _BAR)))
    return "█" * full + "░" * (_BAR - full)


def _blocks(blocks: Mapping[str, Any]) -> str:
    total = blocks.get("total", 0) or 1
    held, cached = blocks.get("held", 0) / total, blocks.get("cached", 0) / total
    full, more = round(held * _BAR), round((held + cached) * _BAR)
    bar = "█" * full + "▒" * (more - full) + "░" * (_BAR - more)
    return f"{bar} held {held:.0%}, cached {cached:.0%} of {blocks.get('total', 0)}"


def _hits(window: Window, last: Reading) -> str:
    now = window.growth("headrace_prompt_tokens_total")
    if now:
        return f"{window.growth('headrace_cached_tokens_total') / now:.0%} of the prompt tokens"
    ever = last.value("headrace_prompt_tokens_total")
    share = last.value("headrace_cached_tokens_total") / ever if ever else 0.0
    return f"{share:.0%} of the prompt tokens since the start"


def _drafts(window: Window, last: Reading) -> str:
    made, right = "headrace_speculation_drafted_tokens_total", "headrace_speculation_accepted_tokens_total"
    methods = sorted({dict(labels)["method"] for labels in last.samples.get(made, {})})
    if not methods:
        return "none"
    parts = []
    for method in methods:
        drafted, accepted = (window.growth(name, method=method) for name in (made, right))
        if not drafted:
            drafted, accepted = (last.value(name, method=method) for name in (made, right))
        length = last.value("headrace_speculation_mean_accepted_length", method=method)
        parts.append(f"{method} {accepted / drafted if drafted else 0:.0%} accepted, {length:.1f} tokens a round")
    return "; ".join(parts)


def _requests(state: Mapping[str, Any], room: int) -> Iterator[str]:
    found: Sequence[Mapping[str, Any]] = [*state.get("running", ()), *state.get("waiting", ())]
    if not found or room < 1:
        return
    yield ""
    yield f"{'request':<30}{'state':<9}{'age':>7}{'prompt':>8}{'cached':>8}{'output':>8}{'blocks':>8}"
    for one in found[:room]:
        yield (
            f"{str(one['id'])[:29]:<30}{_STATES.get(one['state'], one['state']):<9}{one['seconds']:>6.1f}s"
            f"{one['prompt_tokens']:>8}{one['cached_tokens']:>8}{one['output_tokens']:>8}{one['blocks']:>8}"
        )
    if len(found) > room:
        yield f"… and {len(found) - room} more"
