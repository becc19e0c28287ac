"""Pieces of the user's text, of which prompts are made."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import ConfigError

__all__ = ["cut_pieces", "read_texts"]


def read_texts(path: Path) -> list[str]:
    """The text of a file, or of every UTF-8 file below a directory, by name; others and hidden ones are left out.

    Raises ConfigError that names the path if there is no text.
    """
    if not path.exists():
        raise ConfigError(f"--text {path}: there is no such file or directory")
    if path.is_file():
        text = _decoded(path)
        if text is None:
            raise ConfigError(f"--text {path}: it is not UTF-8 text")
        return [text]
    texts = [text for file in _files(path) if (text := _decoded(file)) is not None]
    if not texts:
        raise ConfigError(f"--text {path}: no file below it is UTF-8 text")
    return texts


def _files(path: Path) -> Iterator[Path]:
    for file in sorted(path.rglob("*")):
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts):
            yield file


def _decoded(file: Path) -> str | None:
    try:
        text = file.read_bytes().decode()
    except UnicodeDecodeError:
        return None
    except OSError as error:
        raise ConfigError(f"--text {file}: {error.strerror or error}") from None
    return None if "\0" in text else text


def cut_pieces(texts: list[str], most: int, seed: int) -> list[str]:
    """All pieces of the texts, in an order that `seed` gives: consecutive lines of `most` characters at most. Pieces
    shorter than a quarter of it are left out; a longer line is cut."""
    pieces = [piece for text in texts for piece in _pieces(text, most) if len(piece) >= most // 4]
    random.Random(f"pieces {seed}").shuffle(pieces)
    return pieces


def _pieces(text: str, most: int) -> Iterator[str]:
    piece = ""
    for line in text.splitlines():
        for start in range(0, max(1, len(line)), most):
            part = line[start : start + most].rstrip()
            if len(piece) + len(part) + 1 > most:
                yield piece.strip("\n")
                piece = ""
            piece += f"{part}\n"
    yield piece.strip("\n")
