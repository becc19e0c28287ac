"""Numbers with their nouns."""

from __future__ import annotations

from headrace.wording import counted


def test_one_is_singular() -> None:
    assert [counted(number, "block") for number in (0, 1, 2)] == ["0 blocks", "1 block", "2 blocks"]
    assert [counted(number, "branch", "branches") for number in (1, 2)] == ["1 branch", "2 branches"]
