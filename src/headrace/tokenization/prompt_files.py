"""Which files prompts are read with, by their content."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

__all__ = ["prompt_files_id"]

_SUFFIXES = (".json", ".jinja", ".model", ".txt")
_MOST = 1 << 26
"""Bytes of a file that are read. Of a GGUF file: what its metadata take at most, with a large vocabulary."""
_MOST_GGUF = 1 << 24


def prompt_files_id(path: str) -> str:
    """BLAKE2b-128 in hex of the files of a model that a tokenizer and its templates may come from: of a Hugging Face
    directory all small ones, of a GGUF file its size and beginning. It does not depend on the machine. Empty if there
    are none that can be read. Any thread."""
    place, found = Path(path), blake2b(digest_size=16)
    try:
        files = _small_files(place) if place.is_dir() else [place]
        for file in files:
            with file.open("rb") as opened:
                data = opened.read(_MOST_GGUF if file.suffix == ".gguf" else _MOST)
            for part in (file.name.encode(errors="replace"), str(file.stat().st_size).encode(), data):
                found.update(len(part).to_bytes(8, "little") + part)
    except OSError:
        return ""
    return found.hexdigest() if files else ""


def _small_files(folder: Path) -> list[Path]:
    # A folder may have the name of a file.
    return sorted(one for one in folder.iterdir() if one.suffix in _SUFFIXES and one.is_file())
