"""The clients that install in seconds, against the default model; `ci/clients.sh` runs all of them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.hub.catalogue import cached_path

pytestmark = pytest.mark.real_model
PATIENCE = 300.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    cached_path("smollm2")
    command = [sys.executable, "-m", "headrace", "serve", "smollm2", "--port", "0", "--max-model-len", "1024"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert found, "the server did not start"
        yield found[0]
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()


CLIENTS = (
    "openai_embeddings",
    "ollama_embed",
    "openai_chat",
    "openai_parse",
    "openai_prediction",
    "openai_responses",
    "llm_schemas",
    "anthropic_messages",
    "ollama_chat",
)


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client(name: str, url: str) -> None:
    script = Path(__file__).with_name(f"{name}.py")
    done = subprocess.run([sys.executable, script, url], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
