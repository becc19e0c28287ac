"""docs/configuration.md says what the code does."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

TOOL = Path(__file__).parents[3] / "tools" / "write_configuration.py"


def test_the_page_is_current() -> None:
    made = runpy.run_path(str(TOOL))
    assert made["PAGE"].read_text() == made["page"](), "run tools/write_configuration.py"


def test_the_page_has_every_variable_that_the_readme_names() -> None:
    text = (TOOL.parent.parent / "README.md").read_text()
    begin = text.index("Environment variables:")
    named = set(re.findall(r"\b[A-Z]+_[A-Z_]+\b", text[begin : text.index("\n\n", begin)]))
    page = runpy.run_path(str(TOOL))["page"]()
    assert len(named) >= 8
    assert {name for name in named if f"| `{name}" not in page} == set()
