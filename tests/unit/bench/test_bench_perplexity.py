"""Perplexity: the tokens of a text that are scored, and the result."""

from __future__ import annotations

import json
import math
import statistics
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace.bench import verb_perplexity
from headrace.bench.dispatch import main
from headrace.bench.verb_perplexity import perplexity, windows
from headrace.errors import ConfigError


class Letters:
    """One token per character, after `bos` if it is given."""

    def __init__(self, bos: int | None = None) -> None:
        self.bos_token_id = 0
        self._opens = [] if bos is None else [bos]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [*self._opens, *map(ord, text)]


def cut(text: str, size: int, bos: int | None = None) -> list[list[int]]:
    return list(windows(Letters(bos), text, size))  # type: ignore[arg-type]


def test_windows_are_consecutive_and_the_rest_is_left_out() -> None:
    assert cut("abcdefghij", 4) == [[97, 98, 99, 100], [101, 102, 103, 104]]
    assert cut("abc", 4) == []


def test_every_window_starts_with_bos_if_the_tokenizer_adds_it() -> None:
    assert cut("abcdefghij", 4, bos=0) == [[0, 97, 98, 99], [0, 101, 102, 103]]


@pytest.mark.parametrize("size", [4, 7, 512])
def test_tokens_predicted_by_the_second_half_are_scored(size: int) -> None:
    """Token i counts where logits i - 1 stand in the second half: size - size // 2 - 1 tokens a window."""
    seen: list[Sequence[int]] = []

    def score(window: Sequence[int]) -> list[float | None]:
        seen.append(window)
        first_half = size // 2 + 1
        return [None, *[-100.0] * (first_half - 1), *[-float(len(seen))] * (size - first_half)]

    found = perplexity([[1] * size, [2] * size, [3] * size], score)
    assert found.value == pytest.approx(math.exp(2.0))
    assert found.running == pytest.approx([math.exp(1.0), math.exp(1.5), math.exp(2.0)])
    each = size - size // 2 - 1
    assert found.tokens == 3 * each
    spread = statistics.stdev([1.0] * each + [2.0] * each + [3.0] * each) / math.sqrt(3 * each)
    assert found.error == pytest.approx(found.value * spread)
    assert seen == [[1] * size, [2] * size, [3] * size]


@contextmanager
def scoring(answer: dict[str, Any], key: str) -> Iterator[str]:
    """A server that gives the same answer to every request with the key."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            known = self.headers.get("Authorization") == f"Bearer {key}" and body["echo"] and body["max_tokens"] == 0
            self.send_response(200 if known else 401)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(verb_perplexity, "resolve_model", Path)
    monkeypatch.setattr(verb_perplexity, "load_tokenizer", lambda path: Letters())
    path = tmp_path / "text"
    path.write_text("abcdefgh" * 2)
    return path


def test_a_server_scores_and_is_compared_with_another_engine(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {"choices": [{"logprobs": {"token_logprobs": [None, *[-9.0] * 4, *[-math.log(8)] * 3]}}]}
    outputs = ["--json", str(tmp_path / "p.json"), "--html", str(tmp_path / "p.html")]
    with scoring(answer, "k") as url:
        options = ["m", str(text), "--window", "8", "--url", url, "--against", "4", *outputs]
        assert main(["perplexity", *options, "--api-key", "k"]) == 0
        with pytest.raises(ConfigError, match="HTTP 401"):
            main(["perplexity", *options])
    assert "2.0000" in capsys.readouterr().out
    found = json.loads((tmp_path / "p.json").read_text())
    assert found["perplexity"] == pytest.approx(8.0)
    assert (found["ratio"], found["tokens_scored"], len(found["running"])) == (pytest.approx(2.0), 6, 2)
    assert "<polyline" in (tmp_path / "p.html").read_text()


def test_a_server_without_logprobs_is_named(text: Path) -> None:
    with scoring({"choices": [{"logprobs": None}]}, "k") as url, pytest.raises(ConfigError, match="no prompt logprobs"):
        main(["perplexity", "m", str(text), "--window", "8", "--url", url, "--api-key", "k"])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--window", "3"], "--window 3"),
        (["--window", "512"], "shorter than one window"),
        (["--window", "8", "--url", "http://127.0.0.1:1", "--kv-dtype", "int8"], "--kv-dtype chooses"),
        (["--window", "8", "--url", "http://127.0.0.1:1"], "is the server running"),
    ],
)
def test_invalid_options_and_texts_are_refused(text: Path, options: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        main(["perplexity", "m", str(text), *options])
