"""Tiny checkpoints, made once a session."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import tiny_models
from engine_forks import forks
from engine_harness import PROGRAM_OPTIONS
from server_harness import CONTEXT, VOCAB, Server, make_model, running

from headrace import LLM


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the timeouts, so that a slow machine makes no test fail; `patient_server.py` does the same for servers."""
    monkeypatch.setattr("headrace.client.process_client._SILENCE", 600.0)
    monkeypatch.setattr("headrace.client.process_client._KILL_AFTER", 600.0)
    monkeypatch.setattr("headrace.client.base_client._STATS_TIMEOUT", 600.0)
    monkeypatch.setattr("headrace.client.base_client._FRESH_TIMEOUT", 600.0)
    monkeypatch.setattr("headrace.client.base_client._VIEW_TIMEOUT", 600.0)


@pytest.fixture(scope="module", autouse=True)
def ranks_and_engines_by_fork() -> Iterator[None]:
    """Those that are processes of their own."""
    with mock.patch("headrace.engine.spawn.subprocess", forks().stand_in()):
        yield


@pytest.fixture(scope="module", autouse=True)
def levels_as_before() -> Iterator[None]:
    """The command line sets the levels of the process's logs."""
    ours, root = logging.getLogger("headrace"), logging.getLogger()
    before = ours.level, root.level
    yield
    ours.setLevel(before[0])
    root.setLevel(before[1])


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory: random Llama weights in float32, a byte tokenizer (ids 4 to 259) and a chat template."""
    path = tmp_path_factory.mktemp("tiny-llama")
    make_model(path)
    # Over the weights that the server's tests use: a layer less, since here every step counts.
    tiny_models.save("llama", path, vocab_size=VOCAB, max_position_embeddings=512, num_hidden_layers=2, hidden_size=32)
    return path


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    """For programs."""
    with LLM(str(tiny_llama), **PROGRAM_OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def cold(tiny_llama: Path) -> Iterator[LLM]:
    """It answers each request alone, and finds nothing in a cache."""
    with LLM(str(tiny_llama), **PROGRAM_OPTIONS, prefix_caching=False) as llm:
        yield llm


@pytest.fixture(scope="session")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all the edge cases: two slots, chunks of 16 tokens, and a cache of 20 blocks under a context of
    512."""
    path = tmp_path_factory.mktemp("edges")
    make_model(path)
    options = {
        "model": {"max_model_len": CONTEXT},
        "cache": {"num_blocks": 21},
        "scheduler": {"max_num_seqs": 2, "max_num_batched_tokens": 16},
    }
    with running(path, options) as served:
        yield served
