"""docs/configuration.md says what the code does."""

from __future__ import annotations

import runpy
from pathlib import Path

TOOL = Path(__file__).parents[3] / "tools" / "write_configuration.py"


def test_the_page_is_current() -> None:
    made = runpy.run_path(str(TOOL))
    assert made["PAGE"].read_text() == made["page"](), "run tools/write_configuration.py"
