"""Files of a checkpoint that are no files, no JSON, or too much of either: one line that names them, and no waiting."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.checkpoints.files import optional_json, present, read_json, read_text
from headrace.checkpoints.safetensors_source import open_safetensors
from headrace.errors import CheckpointError, UnsupportedModel


def dangling(path: Path) -> None:
    path.symlink_to(path.parent / "absent")


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):  # A socket's path has 108 bytes at most.
        made.bind(path.name)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


NO_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a named pipe": (os.mkfifo, "a named pipe: expected a file"),
    "a directory": (Path.mkdir, "a directory: expected a file"),
    "a dangling link": (dangling, "a link to a file that does not exist"),
    "a socket": (listening, "a socket: expected a file"),
    "a device": (endless, "a device: expected a file"),
    "a link to itself": (lambda path: path.symlink_to(path), "cannot be read"),
}


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_named_and_not_opened(kind: str, tmp_path: Path) -> None:
    make, why = NO_FILES[kind]
    for name in ("config.json", "model.safetensors", "model.safetensors.index.json"):
        make(tmp_path / name)
    for read in (read_json, optional_json, read_text):
        with pytest.raises(CheckpointError, match=rf"config\.json: {why}"):
            read(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match=rf"index\.json: {why}"):
        open_safetensors(tmp_path, None)
    (tmp_path / "model.safetensors.index.json").rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match=rf"model\.safetensors: {why}"):
        open_safetensors(tmp_path, None)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not valid JSON"),
        (b"[1]", "holds a list: expected a JSON object"),
        (b"3", "holds a int: expected a JSON object"),
        (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "nested too deeply: at most 64"),
        (b'{"a": ' * 1000 + b"1" + b"}" * 1000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"a": "\xff"}', "not UTF-8: byte 7"),
        (b'{"a": 1}x', "not valid JSON"),
    ],
)
def test_what_is_no_sound_json_is_named(content: bytes, why: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=why) as caught:
        read_json(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


def test_a_file_of_any_length_costs_no_more_than_its_name(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CheckpointError, match="has 1099511627776 bytes"):
        read_json(tmp_path / "config.json")


def test_what_is_absent_is_not_what_cannot_be_read(tmp_path: Path) -> None:
    assert not present(tmp_path / "generation_config.json")
    assert optional_json(tmp_path / "generation_config.json") == {}
    with pytest.raises(CheckpointError, match="the file is missing"):
        read_json(tmp_path / "generation_config.json")
    with pytest.raises(UnsupportedModel, match=r"no model\.safetensors"):
        open_safetensors(tmp_path, None)


@pytest.mark.parametrize("name", ["..", ".", "", "../x", "/etc/passwd", "a/b", "x\0y", "\ud800", 3, None, ["x"], {}])
def test_an_index_names_files_beside_it(name: object, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(CheckpointError, match=r"index\.json: field '?weight_map"):
        open_safetensors(tmp_path, None)
