"""Files of tests over processes, for `pytest --dist loadfile`."""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

__all__ = ["FileScheduling"]

TOGETHER = ("tests/platform/example/", "tests/engine/test_edges_")
"""Beginnings of the paths of files that share what takes long to make: an extension that is compiled, a server."""
_KEPT_BUSY = 2
"""Tests that a process has left when it is given the next file: it begins one only when it knows what follows it."""


class FileScheduling(LoadFileScheduling):
    """Each file in one process, and so are files that share what takes long to make. In the order of collection.

    A test that ends its process fails by name, and is not run again: the tests behind it go on in the next process.
    """

    def __init__(self, config: pytest.Config, log: object) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def remove_node(self, node: WorkerController) -> str | None:
        """Take back what a process has not run; the test in which it has ended, if it has not run all."""
        left = {
            scope: [test for test, done in tests.items() if not done]
            for scope, tests in self.assigned_work.pop(node).items()
        }
        pending = [test for tests in left.values() for test in tests]
        if not pending:
            return None
        lost, *_ = pending
        for scope, tests in left.items():
            if again := {test: False for test in tests if test != lost}:
                self.workqueue[scope] = again
        for other in list(self.assigned_work):
            self._reschedule(other)
        return lost

    def _reschedule(self, node: WorkerController) -> None:
        """Give a process files until it has enough to do. One that has not collected yet gets its own later."""
        while node in self.registered_collections and not node.shutting_down:
            super()._reschedule(node)
            if self._pending_of(self.assigned_work[node]) > _KEPT_BUSY:
                return

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return next((start for start in TOGETHER if file.startswith(start)), file)
