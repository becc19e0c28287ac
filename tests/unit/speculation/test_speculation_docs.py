"""The drafter in the docs is one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from naive_drafts import NAMESPACE

from headrace.speculation.drafter import NO_GUESS, HostDrafter

PAGE = Path(__file__).parents[3] / "docs" / "speculation.md"


def test_the_example_is_a_drafter() -> None:
    *_, source = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found: dict[str, Any] = {}
    exec(source, found)
    drafter = found["Repeat"]()
    assert isinstance(drafter, HostDrafter)
    drafter.begin("s", NAMESPACE, [])
    assert drafter.guess("s", 4) == NO_GUESS
    drafter.extend("s", [3, 5])
    assert drafter.guess("s", 4).tokens == [5] * 4
    drafter.end("s", keep=False)
    assert drafter.last == {}
