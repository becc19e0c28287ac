"""Two replicas of a tiny model as processes of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from replicas_harness import replicated
from server_harness import until

from headrace.cli.main import main


def process(row: dict[str, Any]) -> int:
    return int(row["where"].removeprefix("process "))


def test_a_killed_replica_comes_back_and_no_request_is_lost(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with replicated(tiny_llama, "--replicas 2") as served:
        until(lambda: len(served.ready()) == 2, served.rows)
        victim = served.ready()[0]
        with served.load(2):
            psutil.Process(process(victim)).kill()
            until(lambda: served.rows()[victim["replica"]]["restarts"] == 1, served.rows)
            until(lambda: len(served.ready()) == 2, served.rows)
        again = served.ready()[victim["replica"]]
        assert (again["url"], process(again) != process(victim)) == (victim["url"], True)
        assert main(["status", served.url]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert [line.split()[:2] for line in shown[1:3]] == [["0", "ready"], ["1", "ready"]]
        assert shown[-1] == "2 wanted"
