"""Models from a hub's repositories: only the files needed, complete, fetched once; errors have remedies."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import huggingface_hub.file_download
import pytest
from hub_stand_in import COMMIT, Hub, serving

from headrace.errors import ModelNotFound
from headrace.hub.model_reference import Repository, display_name, parse_repository
from headrace.hub.repository import fetch_repository

SETTINGS = {"config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}", "generation_config.json": b"[]"}
INDEX = json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})
REPOSITORIES = {
    "org/whole": {
        **SETTINGS,
        "model.safetensors": b"weights" * 1000,
        "consolidated.safetensors": b"the same",
        "pytorch_model.bin": b"a pickle",
        "original/consolidated.00.pth": b"a pickle",
        "onnx/model.onnx": b"another",
        "README.md": b"words",
    },
    "org/parts": {
        **SETTINGS,
        "model.safetensors.index.json": INDEX.encode(),
        "model-00001-of-00002.safetensors": b"first",
        "model-00002-of-00002.safetensors": b"second",
        "model.fp32.safetensors": b"of no use",
    },
    "org/pickled": {**SETTINGS, "pytorch_model.bin": b"a pickle"},
    "org/quants": {f"m.{kind}.gguf": kind.encode() for kind in ("Q4_0", "Q8_0")},
    "org/one-quant": {"m.gguf": b"GGUF", "README.md": b"words"},
    "org/empty": {"README.md": b"words"},
    "org/gated": {**SETTINGS, "model.safetensors": b"weights"},
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serving(Hub(dict(REPOSITORIES), token="secret", gated=frozenset({"org/gated"}))) as found:
        yield found


def silent(what: str, done: int, total: int) -> None:
    """No progress."""


def fetch(hub: Hub, text: str) -> Path:
    repository = parse_repository(text)
    assert repository is not None
    return fetch_repository(repository, silent, hub.url)


@pytest.mark.parametrize(
    ("text", "repository"),
    [
        ("org/name", Repository("org/name")),
        ("org/name@v1.0", Repository("org/name", "v1.0")),
        ("org/name:m.Q4_0.gguf", Repository("org/name", None, "m.Q4_0.gguf")),
        ("org/name@refs/pr/1:sub/m.gguf", Repository("org/name", "refs/pr/1", "sub/m.gguf")),
        ("smollm2", None),
        ("./org/name", None),
        ("../name", None),
        ("/org/name", None),
        ("org/name/more", None),
        ("org/name:m.bin", None),
        ("org/..", None),
    ],
)
def test_repository_names(text: str, repository: Repository | None) -> None:
    assert parse_repository(text) == repository


def test_a_path_that_exists_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert parse_repository("org/name") is None
    assert display_name("org/name") == "name"
    assert display_name("org/other@main") == "org/other"


def test_only_what_is_needed_is_fetched(hub: Hub) -> None:
    folder = fetch(hub, "org/whole")
    assert {file.name for file in folder.iterdir()} == {*SETTINGS, "model.safetensors"}
    assert (folder / "model.safetensors").read_bytes() == b"weights" * 1000
    assert sorted(hub.fetched()) == sorted([*SETTINGS, "model.safetensors"])


def test_shards_are_those_of_the_index(hub: Hub) -> None:
    folder = fetch(hub, "org/parts@main")
    assert {file.name for file in folder.glob("*.safetensors")} == {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }


def test_cached_files_are_not_fetched_again(hub: Hub) -> None:
    first = fetch(hub, "org/whole")
    hub.asked.clear()
    assert fetch(hub, "org/whole") == first
    assert hub.fetched() == []


def test_an_interrupted_download_is_resumed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr(huggingface_hub.file_download.time, "sleep", lambda seconds: None)
    content = bytes(range(256)) * 1000
    hub.repositories["org/large"] = {"m.gguf": content}
    hub.cut["m.gguf"] = 200_000
    assert fetch(hub, "org/large").read_bytes() == content
    first, second = [span for method, path, span in hub.asked if method == "GET" and path.endswith(".gguf")]
    assert first == ""
    assert second == "bytes=200000-"


def test_one_gguf_file_is_used_and_several_are_an_error(hub: Hub) -> None:
    assert fetch(hub, "org/one-quant").name == "m.gguf"
    assert fetch(hub, "org/quants:m.Q8_0.gguf").read_bytes() == b"Q8_0"
    with pytest.raises(
        ModelNotFound, match=r"2 GGUF files: name one, as org/quants:m.Q4_0.gguf; there is m.Q4_0.gguf, "
    ):
        fetch(hub, "org/quants")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("org/pickled", "weights as pickles only"),
        ("org/empty", r"neither a config.json with safetensors nor a GGUF file; there is README.md"),
        ("org/none", "no repository org/none, or it is private: .*HF_TOKEN"),
        ("org/whole@v9", "org/whole has no revision 'v9'"),
        ("org/quants:m.Q2_K.gguf", r"no file 'm.Q2_K.gguf'; there is m.Q4_0.gguf, m.Q8_0.gguf"),
        ("org/gated", "org/gated is gated: .*HF_TOKEN"),
    ],
)
def test_errors_have_remedies(hub: Hub, text: str, message: str) -> None:
    with pytest.raises(ModelNotFound, match=message):
        fetch(hub, text)
    assert hub.fetched() == []


def test_a_token_opens_a_gated_repository(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert (fetch(hub, "org/gated") / "model.safetensors").read_bytes() == b"weights"


def test_without_a_connection_the_cache_serves(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    folder, file = fetch(hub, "org/whole"), fetch(hub, "org/quants:m.Q4_0.gguf")
    nobody = Hub({}, url="http://127.0.0.1:9")
    with caplog.at_level(logging.WARNING):
        assert fetch(nobody, "org/whole") == folder
        assert fetch(nobody, "org/quants:m.Q4_0.gguf") == file
    assert "org/whole: the hub cannot be reached" in caplog.text
    with pytest.raises(ModelNotFound, match="org/parts is not in the cache, and the hub cannot be reached"):
        fetch(nobody, "org/parts")


def test_offline_is_honoured(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch(hub, "org/whole")
    hub.asked.clear()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert fetch(hub, "org/whole") == folder
    with pytest.raises(ModelNotFound, match=r"org/parts is not in the cache, .*HF_HUB_OFFLINE is set"):
        fetch(hub, "org/parts")
    assert hub.asked == []


def test_progress_counts_bytes(hub: Hub) -> None:
    seen: list[tuple[str, int, int]] = []
    fetch_repository(Repository("org/one-quant"), lambda *told: seen.append(told), hub.url)
    assert seen[-1] == ("m.gguf", 4, 4)


def test_the_command_line_reads_the_environment(hub: Hub, tmp_path: Path) -> None:
    environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "pull", f"org/quants@{COMMIT}:m.Q4_0.gguf"],
        check=False, capture_output=True, text=True, env=environment, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == b"Q4_0"
    assert "fetching m.Q4_0.gguf" in done.stderr
