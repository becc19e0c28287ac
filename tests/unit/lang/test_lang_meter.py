"""What a run computes itself is metered, and gives others a turn."""

from __future__ import annotations

import asyncio

import pytest

from headrace.errors import ProgramError
from headrace.lang.run_meter import RunMeter


def test_characters_and_entries_are_counted() -> None:
    async def run() -> None:
        meter = RunMeter(100)
        await meter.add(["abc", 5, None, ["ab", "c"], {"key": "value"}])
        assert meter.total == 3 + 2 + 3 + 1 + 5
        with pytest.raises(ProgramError, match="read more than 100"):
            await meter.add(["x" * 90])

    asyncio.run(run())


@pytest.mark.parametrize("operands", [(), ("x" * 2000,)])
def test_others_get_a_turn(operands: tuple[str, ...]) -> None:
    async def run() -> None:
        meter, turns = RunMeter(), 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        for _ in range(1000):
            await meter.add(operands)
        task.cancel()
        assert 5 <= turns <= 500

    asyncio.run(run())


def test_what_stands_deep_in_a_value_is_counted() -> None:
    async def run() -> None:
        meter = RunMeter(100)
        assert await meter.add([[[[["x" * 50]]]], {"a": {"b": ["y" * 20]}}]) == 50 + 4 + 20 + 3
        with pytest.raises(ProgramError, match="read more than 100"):
            await meter.add([[[[[0] * 30]]]])

    asyncio.run(run())


def test_a_list_that_holds_one_list_often_is_not_walked_to_its_end() -> None:
    value: list[object] = [1]
    for _ in range(60):
        value = [value] * 100

    async def run() -> None:
        with pytest.raises(ProgramError, match="read more than 1000"):
            await RunMeter(1000).add([value])

    asyncio.run(run())
