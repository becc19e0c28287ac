"""Undoes the changes of the command line to the process after each test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def levels_as_before() -> Iterator[None]:
    ours, root = logging.getLogger("headrace"), logging.getLogger()
    before = ours.level, root.level
    yield
    ours.setLevel(before[0])
    root.setLevel(before[1])
