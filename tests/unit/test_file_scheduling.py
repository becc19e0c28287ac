"""Which tests a process gets after another one has ended in the middle of one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from file_scheduling import FileScheduling
from xdist.remote import Producer


class Process:
    """Runs the tests that it is sent: each only once it knows what follows it, or that nothing does."""

    def __init__(self, scheduling: FileScheduling, collection: list[str]) -> None:
        self.scheduling, self.collection = scheduling, collection
        self.queue: list[int] = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="process")

    def send_runtest_some(self, indices: list[int]) -> None:
        self.queue += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def run(self, ends_in: tuple[str, ...], ran: list[str]) -> str | None:
        """Run what it has; the test in which it has ended."""
        while len(self.queue) > (0 if self.shutting_down else 1):
            index = self.queue.pop(0)
            ran.append(self.collection[index])
            if ran[-1] in ends_in:
                return ran[-1]
            self.scheduling.mark_test_complete(self, index)  # type: ignore[arg-type]
        return None


@pytest.mark.parametrize(
    ("files", "ends_in"),
    [
        ({"a": 4, "b": 4, "c": 4}, ()),
        ({"a": 4, "b": 4, "c": 4}, ("a::1",)),
        ({"a": 4, "b": 4, "c": 4}, ("b::3", "c::0", "c::2", "c::3")),
        ({"a": 4, "b": 1}, ("a::2",)),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, ("a::0", "b::0", "c::0", "d::0")),
        ({"a": 3, "b": 3}, ("a::2", "b::2")),
    ],
)
def test_all_are_run_once(files: dict[str, int], ends_in: tuple[str, ...]) -> None:
    """A test that ends its process, too: what it does would only happen again."""
    settings: Any = SimpleNamespace(option=SimpleNamespace(loadscopereorder=True), getvalue=lambda _: ["2*popen"])
    scheduling: Any = FileScheduling(settings, Producer("tests", enabled=False))
    collection = [f"{file}::{number}" for file, count in files.items() for number in range(count)]
    processes: list[Process] = []
    ran: list[str] = []
    ended: list[str] = []

    def start() -> Process:
        processes.append(Process(scheduling, collection))
        scheduling.add_node(processes[-1])
        return processes[-1]

    def collected(process: Process) -> None:
        scheduling.add_node_collection(process, collection)
        if scheduling.collection_is_completed:
            scheduling.schedule()

    for process in [start(), start()]:
        collected(process)
    while any(process.queue for process in processes):
        before = len(ran)
        new = []
        for process in list(processes):
            if (test := process.run(ends_in, ran)) is not None:
                processes.remove(process)
                assert scheduling.remove_node(process) == test
                ended.append(test)
                new.append(start())
        for process in new:
            collected(process)
        assert before < len(ran) <= len(collection), "somebody goes on, with others"
    assert sorted(ran) == sorted(collection)
    assert sorted(ended) == sorted(ends_in)
    assert not scheduling.workqueue
    assert all(process.shutting_down for process in processes)
