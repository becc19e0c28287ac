"""Tiny checkpoints, made once a session."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_models
from server_harness import VOCAB, make_model


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory: random Llama weights in float32, a byte tokenizer (ids 4 to 259) and a chat template."""
    path = tmp_path_factory.mktemp("tiny-llama")
    make_model(path)
    # Over the weights that the server's tests use: a layer less, since here every step counts.
    tiny_models.save("llama", path, vocab_size=VOCAB, max_position_embeddings=512, num_hidden_layers=2, hidden_size=32)
    return path
