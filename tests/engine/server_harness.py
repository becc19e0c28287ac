"""A real server process: a tiny random model behind the command's own entry point, on a free port."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import tiny_models
from engine_forks import forks
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB = 260
CONTEXT = 512
NAME = "tiny"
_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_SCRIPT = Path(__file__).with_name("patient_server.py")
PATIENCE = 300.0
"""Seconds; for what comes soon, unless the machine stands still."""


def command(model: Path, config: dict[str, Any], **limits: Any) -> list[str]:
    """What starts a server; see `patient_server.py`."""
    return [sys.executable, str(_SCRIPT), str(model), json.dumps(config), json.dumps(limits)]


def until(condition: Callable[[], object], what: Callable[[], object] = lambda: "") -> None:
    """`what` says how things stand where it does not happen. Turns are counted: a machine that stands still takes
    none."""
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"did not happen within a minute {what()}")


def engine_of(server: int) -> psutil.Process:
    """The engine among a server's processes, once there is one; another renders chat templates."""

    def engines() -> list[psutil.Process]:
        children = psutil.Process(server).children()
        return [child for child in children if "headrace.tokenization.render_process" not in child.cmdline()]

    until(lambda: len(engines()) == 1)
    (engine,) = engines()
    return engine


def make_model(directory: Path) -> None:
    """Weights, a byte tokenizer (ids 4 to 259 are bytes) and a chat template."""
    tiny_models.save("llama", directory, vocab_size=VOCAB, max_position_embeddings=CONTEXT)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2, "<x>": 3, **{char: 4 + i for i, char in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<pad>", "<s>", "</s>", "<x>")])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": _TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


class Server:
    def __init__(
        self,
        model: Path,
        options: dict[str, dict[str, Any]] | None = None,
        limits: dict[str, float] | None = None,
        **server: Any,
    ) -> None:
        """`options` replace the configuration's sections, `server` adds to that of the server."""
        config = {
            "cache": {"num_blocks": 200},
            "scheduler": {"max_num_seqs": 8, "max_num_batched_tokens": 64},
            "device": {"platform": "cpu", "threads": 1},
            "server": {"port": 0, "served_model_name": NAME, **server},
            **(options or {}),
        }
        self._slow = model.with_name(f"{model.name}-slow-{secrets.token_hex(4)}")
        self.process = forks().Popen(
            command(model, config, slow=str(self._slow), **(limits or {})), stdout=subprocess.PIPE, text=True
        )

    def started(self) -> None:
        assert self.process.stdout is not None
        match = re.search(r"http://127\.0\.0\.1:\d+", self.process.stdout.readline())
        assert match, "the server did not start"
        self.url = match[0]
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE)

    def end(self) -> None:
        """Of all its processes: those that a server leaves behind end by themselves and clear up, unless they stand
        still."""
        others = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        self.process.kill()
        for process in psutil.wait_procs(others, 30)[1]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.communicate()

    @contextmanager
    def slow(self) -> Iterator[None]:
        """Four steps a second in here, until the engine is another: what is asked for goes on for as long as a test
        needs it."""
        self._slow.touch()
        try:
            yield
        finally:
            self._slow.unlink()

    @property
    def engine(self) -> psutil.Process:
        return engine_of(self.process.pid)

    def complete(self, **body: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"model": NAME, "prompt": "Hello", "temperature": 0, **body})

    def lines(self, **body: Any) -> Iterator[str]:
        """A streamed completion's lines."""
        request = {"model": NAME, "prompt": "Hello", "temperature": 0, "stream": True, "ignore_eos": True, **body}
        with httpx.stream("POST", f"{self.url}/v1/completions", json=request, timeout=PATIENCE) as response:
            assert response.status_code == 200, response.read()
            # A comment comes where nothing else does for a while.
            yield from (line for line in response.iter_lines() if line and not line.startswith(":"))

    def figures(self) -> dict[str, float]:
        lines = self.http.get("/metrics").text.splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


@contextmanager
def running(
    model: Path,
    options: dict[str, dict[str, Any]] | None = None,
    limits: dict[str, float] | None = None,
    **server: Any,
) -> Iterator[Server]:
    served = Server(model, options, limits, **server)
    try:
        served.started()
        with served.http:
            yield served
    finally:
        served.end()
