"""The identity of the files that prompts are read with."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.tokenization.hf_vocab import hf_templates
from headrace.tokenization.prompt_files import prompt_files_id


def folder(path: Path, **files: str) -> str:
    path.mkdir()
    for name, text in {"tokenizer.json": "{}", "config.json": "{}", "model.safetensors": "w", **files}.items():
        (path / name).write_text(text)
    return prompt_files_id(str(path))


def test_it_is_that_of_the_content(tmp_path: Path) -> None:
    first = folder(tmp_path / "a")
    assert len(bytes.fromhex(first)) == 16
    assert folder(tmp_path / "b", **{"model.safetensors": "other weights"}) == first
    os.utime(tmp_path / "a" / "tokenizer.json", (1, 1))
    assert prompt_files_id(str(tmp_path / "a")) == first
    names = ("tokenizer.json", "config.json", "chat_template.jinja")
    others = [folder(tmp_path / f"c{at}", **{name: "[]"}) for at, name in enumerate(names)]
    assert len({first, *others}) == 4


def test_a_folder_with_the_name_of_a_file_is_none(tmp_path: Path) -> None:
    first = folder(tmp_path / "a")
    (tmp_path / "a" / "x.json").mkdir()
    assert prompt_files_id(str(tmp_path / "a")) == first
    (tmp_path / "a" / "additional_chat_templates" / "x.jinja").mkdir(parents=True)
    (tmp_path / "a" / "additional_chat_templates" / "rag.jinja").write_text("{{ x }}")
    assert hf_templates(tmp_path / "a") == {"rag": "{{ x }}"}


def test_a_gguf_file_by_its_beginning_and_size(tmp_path: Path) -> None:
    file, other = tmp_path / "a.gguf", tmp_path / "b" / "a.gguf"
    other.parent.mkdir()
    file.write_bytes(b"GGUF" + bytes(9))
    other.write_bytes(b"GGUF" + bytes(9))
    assert prompt_files_id(str(file)) == prompt_files_id(str(other))
    other.write_bytes(b"GGUF" + bytes(10))
    assert prompt_files_id(str(file)) != prompt_files_id(str(other))


def test_what_cannot_be_read_has_none(tmp_path: Path) -> None:
    assert prompt_files_id(str(tmp_path / "nowhere")) == ""
    (tmp_path / "model.safetensors").write_text("w")
    assert prompt_files_id(str(tmp_path)) == ""
