"""What an unknown verb, option or model may have meant, the help's defaults, and scripts for shells."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from headrace.argument_parser import ArgumentParser
from headrace.cli.completion_scripts import SCRIPTS
from headrace.cli.completion_words import VerbWords, command_words
from headrace.cli.main import VERBS, main
from headrace.errors import ConfigError, ModelNotFound
from headrace.foreign_options import FOREIGN_OPTIONS, FOREIGN_VERBS
from headrace.hub.catalogue import resolve_drafter, resolve_model
from headrace.options import make_config
from headrace.suggestions import did_you_mean, nearest


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_the_nearest_of_some_names() -> None:
    assert nearest("servr", ["serve", "chat"]) == "serve"
    assert nearest("xyz", ["serve", "chat"]) is None
    assert (did_you_mean("cat", ["chat"]), did_you_mean("xyz", [])) == ("; did you mean chat?", "")


@pytest.mark.parametrize(
    ("typed", "meant"), [("servr", "serve"), ("ls", "list"), ("launch_server", "serve"), ("genrate", "generate")]
)
def test_verbs(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"; did you mean {meant}?" in refusal(capsys, typed)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ("serve m --max-num-sequences 3", "; did you mean --max-num-seqs?"),
        ("serve m --gpu-memory-utilization 0.9", "; --gpu-memory-utilization is --kv-share here"),
        ("serve m --ctx-size=4096", "; --ctx-size is --max-model-len here"),
        ("serve m -ngl 99", "; -ngl: the whole model lies on the device"),
        ("serve m --tp 2", "; --tp is --tensor-parallel-size here"),
        ("serve --model m", "; --model: the model is an argument of its own: headrace serve MODEL"),
        ("chat m --n-predict 3", "; --n-predict is --max-tokens here"),
        ("bench serve --concurency 3", "; did you mean --concurrency?"),
    ],
)
def test_options(arguments: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, *arguments.split())
    assert said.startswith("error: unrecognized arguments: ")
    assert hint in said
    assert said.count("\n") == 1


def test_an_option_of_another_verb_is_no_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--max-model-len" not in refusal(capsys, "pull", "smollm2", "--ctx-size", "3")


def test_what_is_hinted_at_exists() -> None:
    ours = {flag for verb in command_words() for option in verb.options for flag in option.flags}
    for option, text in FOREIGN_OPTIONS.items():
        for flag in re.findall(r"--[a-z-]+", text):
            assert flag in ours, (option, text)
    assert set(FOREIGN_VERBS.values()) <= set(VERBS)
    assert not set(FOREIGN_VERBS) & set(VERBS)


def test_models() -> None:
    with pytest.raises(ModelNotFound, match=r"; did you mean smollm2\?"):
        resolve_model("smolm2")
    with pytest.raises(ConfigError, match=r"; did you mean max_model_len\?"):
        make_config("m", {"max_model_length": 3})


def test_a_drafter_is_no_model_of_the_catalogue() -> None:
    with pytest.raises(ModelNotFound, match="drafter 'nodir' is no such path: give the directory") as caught:
        resolve_drafter("nodir", False, resolve_model)
    assert "smollm2" not in str(caught.value)
    with pytest.raises(ModelNotFound, match="one of smollm2"):
        resolve_drafter("nodir", True, resolve_model)


def options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from options(inner)
        elif action.option_strings and action.nargs != 0 and not action.required:
            yield action


@pytest.mark.parametrize("verb", [*VERBS, "bench serve", "bench offline", "bench naive", "bench perplexity"])
def test_the_help_has_every_default(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[argparse.Action] = []
    parse = ArgumentParser.parse_args

    def watched(self: ArgumentParser, *arguments: object) -> argparse.Namespace:
        seen.extend(options(self))
        return parse(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ArgumentParser, "parse_args", watched)
    with pytest.raises(SystemExit):
        main([*verb.split(), "--help"])
    said = capsys.readouterr().out
    for action in seen:
        flag = action.option_strings[0]
        # Its entry ends where the next one begins; a verb below this one has its own help.
        entry = re.search(rf"\n  {flag}[ ,].*?(?=\n  -|\n\n|$)", said, re.DOTALL)
        assert entry is None or "default" in entry[0].lower(), entry[0]


@pytest.fixture(scope="module")
def words() -> list[VerbWords]:
    return command_words()


def completed(words: list[VerbWords], line: str) -> list[str]:
    """What bash offers for a line, whose last word is not finished."""
    script = SCRIPTS["bash"](words) + '\nCOMP_WORDS=("$@")\nCOMP_CWORD=$(($# - 1))\n_headrace\necho "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", *line.split(" ")], capture_output=True, text=True, check=True
    )
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("headrace ser", ["serve"]),
        ("headrace run", ["run-batch", "run"]),
        ("headrace serve --dtyp", ["--dtype"]),
        ("headrace serve --dtype b", ["bfloat16"]),
        ("headrace serve smol", ["smollm2"]),
        ("headrace serve smollm2 --dtype float32 --tens", ["--tensor-parallel-size"]),
        ("headrace serve --chat-template s", []),
        ("headrace bench off", ["offline"]),
        ("headrace bench serve --worklo", ["--workload"]),
        ("headrace plugin n", ["new"]),
        ("headrace completion z", ["zsh"]),
    ],
)
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes(words: list[VerbWords], line: str, offered: list[str]) -> None:
    assert sorted(completed(words, line)) == sorted(offered)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_their_script(words: list[VerbWords], shell: str) -> None:
    script = SCRIPTS[shell](words)
    for verb in VERBS:
        assert verb in script
    if shutil.which(shell) is not None:
        subprocess.run(
            [shell, "-n", "-c" if shell == "zsh" else "/dev/stdin", script], input=script, text=True, check=True
        )


def test_the_verb_prints_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("-F _headrace headrace")
    assert "did you mean fish?" in refusal(capsys, "completion", "fisch")
