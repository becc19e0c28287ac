"""The sampling that a checkpoint recommends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.sampling_defaults import describe, sampling_defaults
from headrace.errors import CheckpointError


def test_a_directory(tmp_path: Path) -> None:
    assert sampling_defaults(tmp_path, {}) == {}
    stated = {"temperature": 0.6, "top_k": 20, "top_p": None, "max_new_tokens": 9, "eos_token_id": 3}
    (tmp_path / "generation_config.json").write_text(json.dumps(stated))
    found = sampling_defaults(tmp_path, {})
    assert found == {"temperature": 0.6, "top_k": 20}
    assert describe(found) == "temperature 0.6, top_k 20"


def test_a_gguf(tmp_path: Path) -> None:
    metadata = {
        "general.sampling.temp": 0.6000000238418579,
        "general.sampling.penalty_repeat": 1.0,
        "general.sampling.top_k": 5,
        "general.sampling.mirostat": 1,
    }
    found = sampling_defaults(tmp_path / "m.gguf", metadata)
    assert found == {"temperature": 0.6, "repetition_penalty": 1.0, "top_k": 5}


@pytest.mark.parametrize("stated", [{"temperature": -1}, {"top_p": "0.9"}, {"top_k": 1.5}, {"min_p": [0.1]}])
def test_a_value_that_is_none_of_the_parameter(tmp_path: Path, stated: dict[str, Any]) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(stated))
    with pytest.raises(CheckpointError, match=r"generation_config.json: sampling default: .*--generation-config none"):
        sampling_defaults(tmp_path, {})
