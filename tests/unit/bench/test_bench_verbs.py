"""Every verb that is listed exists and shows its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.bench import verb_naive
from headrace.bench.dispatch import VERBS, main
from headrace.errors import ConfigError


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


def test_naive_names_the_packages_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    monkeypatch.setattr(verb_naive, "find_spec", lambda name: None)
    monkeypatch.setattr(verb_naive, "resolve_model", Path)
    for model, needed in ((tmp_path, "transformers"), (file, "transformers gguf")):
        with pytest.raises(ConfigError, match=f"pip install {needed}$"):
            main(["naive", str(model)])
