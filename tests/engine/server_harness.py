"""A real server process: a tiny random model behind the command's own entry point, on a free port."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import tiny_models
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB = 260
CONTEXT = 512
NAME = "tiny"
_TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
_RUN = (
    "import sys, pathlib; from headrace.config import Config; from headrace.server import run; "
    "sys.exit(run(Config.model_validate_json(sys.argv[1]), pathlib.Path(sys.argv[2])))"
)


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
    def __init__(self, model: Path, options: dict[str, dict[str, Any]] | None = None, **server: Any) -> None:
        """`options` replace the configuration's sections, `server` adds to that of the server."""
        config = {
            "cache": {"num_blocks": 200},
            "scheduler": {"max_num_seqs": 8, "max_num_batched_tokens": 64},
            "device": {"platform": "cpu", "threads": 1},
            "server": {"port": 0, "served_model_name": NAME, **server},
            **(options or {}),
        }
        command = [sys.executable, "-c", _RUN, json.dumps(config), str(model)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        match = re.search(r"http://127\.0\.0\.1:\d+", self.process.stdout.readline())
        assert match, "the server did not start"
        self.url = match[0]
        self.http = httpx.Client(base_url=self.url, timeout=30)

    @property
    def engine(self) -> psutil.Process:
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def complete(self, **body: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"model": NAME, "prompt": "Hello", "temperature": 0, **body})

    def lines(self, **body: Any) -> Iterator[str]:
        """A streamed completion's lines."""
        request = {"model": NAME, "prompt": "Hello", "temperature": 0, "stream": True, "ignore_eos": True, **body}
        with httpx.stream("POST", f"{self.url}/v1/completions", json=request, timeout=30) as response:
            assert response.status_code == 200, response.read()
            yield from (line for line in response.iter_lines() if line)

    def figures(self) -> dict[str, float]:
        lines = self.http.get("/metrics").text.splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


@contextmanager
def running(model: Path, options: dict[str, dict[str, Any]] | None = None, **server: Any) -> Iterator[Server]:
    served = Server(model, options, **server)
    try:
        yield served
    finally:
        family = (
            [psutil.Process(served.process.pid), *psutil.Process(served.process.pid).children(recursive=True)]
            if (served.process.poll() is None)
            else []
        )
        for process in family:
            process.kill()
        served.process.communicate()
