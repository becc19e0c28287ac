"""The engines of a router come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_route_relay import run

from headrace.route.fleet import Fleet
from headrace.route.model_reader import keep_reader
from headrace.route.prompt_client import files_of
from headrace.route.replica import Facts, Replica
from headrace.route.replica_watch import WatchTimes
from headrace.route.roster import Roster
from headrace.tokenization.prompt_files import prompt_files_id


def test_nothing_is_kept_of_an_engine_that_has_left() -> None:
    async def check() -> None:
        fleet = Fleet([])
        roster = Roster(fleet, WatchTimes(), {})
        first, second = (roster.add(number, f"http://127.0.0.1:{number + 1}") for number in range(2))
        chain = fleet.texts.chain(b'{"prompt": "%s"}' % (b"a" * 600))
        for one in (first, second):
            fleet.texts.sent(one.name, chain)
        roster.remove(first)
        assert list(fleet.texts.held(chain)) == [second.name]
        roster.close()

    run(check())


class Reader:
    """Takes the place of the processes that read prompts."""

    def __init__(self, path: str, model: str, max_model_len: int) -> None:
        self.path, self.closed, self.files = path, False, files_of(path)

    def close(self) -> None:
        self.closed = True


def test_prompts_are_read_with_the_files_of_the_newest_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update serves another directory under the same name: its tokenizer may be another one."""
    monkeypatch.setattr("headrace.route.model_reader.PromptClient", Reader)

    async def check() -> None:
        fleet = Fleet([])
        roster = Roster(fleet, WatchTimes(), {"named": "folder"})

        def serve(number: int, path: str, model: str = "m") -> Replica:
            replica = roster.add(number, f"http://127.0.0.1:{number + 1}")
            replica.facts = Facts(model, path)
            keep_reader(fleet, model, {"named": "folder"})
            return replica

        old, new = tmp_path / "old", tmp_path / "new"
        old.mkdir()
        new.mkdir()
        first = serve(0, str(old))
        reader: Any = fleet.readers["m"]
        assert reader.path == str(old)
        second = serve(1, str(new))
        assert (reader.closed, fleet.readers["m"].path) == (True, str(new))
        reader = fleet.readers["m"]
        keep_reader(fleet, "m", {})
        serve(2, "/on/another/machine")
        assert (fleet.readers["m"], reader.closed) == (reader, False), "its files are here, those of the last are not"
        roster.remove(second)
        assert fleet.readers["m"].path == str(old), "the update was given up"
        roster.remove(first)
        assert fleet.readers["m"].path == "/on/another/machine"
        serve(5, str(tmp_path / ("a" * 300)))
        assert fleet.readers["m"].path.endswith("aaa"), "what cannot even be looked for is not here"
        serve(3, str(old), "named")
        serve(4, str(new), "named")
        assert fleet.readers["named"].path == "folder", "as it was asked for"
        roster.close()

    run(check())


@pytest.mark.parametrize("is_folder", [True, False])
def test_an_update_in_place_reads_prompts_with_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_folder: bool
) -> None:
    monkeypatch.setattr("headrace.route.model_reader.PromptClient", Reader)
    file = tmp_path / "tokenizer.json"
    file.write_text("old")
    fleet = Fleet([])
    replica = Replica(0, "http://127.0.0.1:1")
    replica.facts = Facts("m", str(tmp_path if is_folder else file))
    fleet.replicas.append(replica)
    keep_reader(fleet, "m", {})
    old: Any = fleet.readers["m"]
    keep_reader(fleet, "m", {})
    assert fleet.readers["m"] is old
    file.write_text("newer")
    keep_reader(fleet, "m", {})
    new: Any = fleet.readers["m"]
    assert (old.closed, new.closed, new is old) == (True, False, False)
    file.unlink()
    keep_reader(fleet, "m", {})
    assert fleet.readers["m"] is new, "there is nothing to read instead"


def test_an_old_engine_that_comes_back_during_an_update_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.route.model_reader.PromptClient", Reader)
    file = tmp_path / "tokenizer.json"
    file.write_text("old")
    fleet, loaded = Fleet([]), prompt_files_id(str(tmp_path))

    def connect(number: int, files: str) -> Any:
        replica = Replica(number, f"http://127.0.0.1:{number + 1}")
        replica.facts = Facts("m", str(tmp_path), files=files)
        fleet.replicas = [one for one in fleet.replicas if one.number != number] + [replica]
        keep_reader(fleet, "m", {})
        return fleet.readers["m"]

    old = connect(0, loaded)
    file.write_text("newer")
    assert connect(0, loaded) is old
    new = connect(1, prompt_files_id(str(tmp_path)))
    assert (new is old, old.closed, new.closed) == (False, True, False)
    file.write_text("one that says nothing")
    assert connect(2, "") is not new
