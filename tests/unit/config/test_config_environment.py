"""Where models and packed weights are kept, by the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.environment import read_environment
from headrace.errors import ConfigError


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HEADRACE_CACHE": "/c", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/c"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/headrace"),
        ({"HEADRACE_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/headrace"),
    ],
)
def test_the_first_that_is_set(environ: dict[str, str], expected: str) -> None:
    assert read_environment(environ).cache_dir == Path(expected)


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    for environ in ({}, {"HOME": ""}):
        with pytest.raises(ConfigError, match=r"no home directory .*: set HEADRACE_CACHE to a folder"):
            read_environment(environ)
    assert read_environment({"HEADRACE_CACHE": "/c"}).cache_dir == Path("/c")
    assert read_environment({"XDG_CACHE_HOME": "/x"}).cache_dir == Path("/x/headrace")
