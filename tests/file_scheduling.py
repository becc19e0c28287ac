"""Files of tests over processes, for `pytest --dist loadfile`."""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadFileScheduling

__all__ = ["FileScheduling"]

TOGETHER = ("tests/platform/example/", "tests/engine/test_edges_")
"""Beginnings of the paths of files that share what takes long to make: an extension that is compiled, a server."""


class FileScheduling(LoadFileScheduling):
    """Each file in one process, and so are files that share what takes long to make. In the order of collection."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return next((start for start in TOGETHER if file.startswith(start)), file)
