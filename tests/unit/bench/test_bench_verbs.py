"""Every verb that is listed exists and shows its options."""

from __future__ import annotations

import pytest

from headrace.bench.dispatch import VERBS, main


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert f"headrace bench {verb}" in said
    assert "--json FILE" in said
    assert "--html FILE" in said


def test_an_unknown_verb_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["speed"])
    assert ended.value.code == 2
    assert "speed" in capsys.readouterr().err
