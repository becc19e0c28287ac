"""The models and options of `headrace serve`, from flags, the environment and a file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.cli import serve_command
from headrace.cli.main import main
from headrace.cli.served_models import ServedModels, read_served
from headrace.config import Config
from headrace.errors import ConfigError
from headrace.server.model_plan import ModelPlan

FILE = """
port: 9000
threads: 2
max_num_seqs: 4
models:
  - model: one
    threads: 3
    aliases: [first]
  - model: org/two
    name: two
"""


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_API_KEY", raising=False)


def served(*arguments: str) -> ServedModels:
    parser = argparse.ArgumentParser()
    serve_command.configure(parser)
    return read_served(parser.parse_args(arguments))


def plans(*arguments: str) -> list[ModelPlan]:
    return served(*arguments).plans(lambda name: Path("/models") / name, lambda name, is_model: Path("/drafts") / name)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "headrace.yaml"
    path.write_text(FILE)
    return str(path)


def test_one_model_is_served_as_before() -> None:
    assert served().plain
    assert served("a", "--threads", "2").plain
    (plan,) = plans("some/a")
    assert (plan.name, plan.path, plan.preload) == ("some/a", Path("/models/some/a"), True)
    assert plan.config.model.model == "/models/some/a"
    assert served().entries[0].model == "smollm2"
    (plan,) = plans("a", "--served-model-name", "b")
    assert plan.name == "b"


@pytest.mark.parametrize(
    "arguments",
    [
        ("a", "b"),
        ("a", "--keep-alive", "5m"),
        ("a", "--alias", "x=a"),
        ("a", "--enable-control-routes"),
        ("a", "--models-memory", "8GiB"),
    ],
)
def test_what_needs_a_pool(arguments: tuple[str, ...]) -> None:
    assert not served(*arguments).plain


def test_several_models_of_the_command_line() -> None:
    first, second = plans("a", "x/y/b", "--alias", "x=a", "--alias", "y=b", "--threads", "2", "--keep-alive", "90")
    assert (first.name, second.name) == ("a", "b")
    assert (first.names, second.names) == ({"a", "x"}, {"b", "y"})
    assert (first.preload, second.preload) == (False, False)
    assert first.config.device.threads == second.config.device.threads == 2
    assert first.keep_alive == 90


def test_flags_go_before_a_models_options_and_those_before_the_files(file: str) -> None:
    one, two = plans("--config", file)
    assert (one.config.device.threads, two.config.device.threads) == (3, 2)
    assert one.config.scheduler.max_num_seqs == two.config.scheduler.max_num_seqs == 4
    assert (one.name, two.name, one.aliases) == ("one", "two", {"first"})
    one, two = plans("--config", file, "--threads", "1", "--port", "1")
    assert one.config.device.threads == two.config.device.threads == 1
    chosen = served("--config", file, "--port", "1")
    assert chosen.config.server.port == 1
    assert served("--config", file).config.server.port == 9000


def test_models_of_the_command_line_select_those_of_the_file(file: str) -> None:
    (two,) = plans("two", "--config", file)
    assert (two.name, two.path) == ("two", Path("/models/org/two"))
    other, one = plans("other", "first", "--config", file)
    assert (other.name, one.name, one.config.device.threads) == ("other", "one", 3)


def test_the_environment_goes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.toml"
    path.write_text('api_key = "file"\n')
    assert served("--config", str(path)).config.server.api_key == "file"
    monkeypatch.setenv("HEADRACE_API_KEY", "environment")
    assert served("--config", str(path)).config.server.api_key == "environment"
    assert served("--config", str(path), "--api-key", "flag").config.server.api_key == "flag"


def test_preload() -> None:
    assert [plan.preload for plan in plans("a", "b", "--preload", "b")] == [False, True]
    assert [plan.preload for plan in plans("a", "b", "--preload", "all")] == [True, True]
    with pytest.raises(ConfigError, match="no model has the name 'c'; there are a, b"):
        plans("a", "b", "--preload", "a,c")


def test_clashes_and_mistakes() -> None:
    with pytest.raises(ConfigError, match="two models have the name 'a'"):
        plans("x/a/a", "y/a/a")
    with pytest.raises(ConfigError, match="did you mean 'smollm2'"):
        plans("smollm2", "b", "--alias", "x=smolm2")
    with pytest.raises(ConfigError, match="--served-model-name names one model"):
        plans("a", "b", "--served-model-name", "c")
    with pytest.raises(ConfigError, match="--max-num-seqs 0"):
        plans("a", "b", "--max-num-seqs", "0")


def test_a_dry_run_checks_every_model_and_all_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.cli import serve_plan

    seen: list[tuple[str, str]] = []
    faults: list[str] = []

    def shown(config: Config, name: str, others: Sequence[str]) -> int:
        seen.append((config.model.model, name))
        faults[:] = others
        return 2 if others else 0

    monkeypatch.setattr(serve_plan, "show_serve_plan", shown)
    for name in "ab":
        (tmp_path / name).mkdir()
    both = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(["serve", *both, "--dry-run"]) == 0
    assert seen == [(both[0], "a"), (both[1], "b")]
    for options, fault in (
        (["--models-memory", "1Mi"], "--models-memory 1MiB: the largest model needs"),
        (["--kv-events-endpoint", "tcp://*:1"], "leave it out, or the other models"),
        (["--role", "prefill"], "leave it out, or the other models"),
        (["--preload", "zz"], "--preload zz: no model has the name 'zz'"),
        (["--replicas", "2"], "--replicas is for one model that stays loaded: leave it out, or the other models"),
    ):
        assert main(["serve", *both, "--dry-run", *options]) == 2
        assert len(faults) == 1
        assert fault in faults[0]
    # The same names are looked at with one model that stays loaded.
    seen.clear()
    assert main(["serve", both[0], "--dry-run", "--preload", "zz"]) == 2
    assert seen == [(both[0], "")]
    assert "--preload zz: no model has the name 'zz'" in faults[0]


@pytest.mark.parametrize("check", [["--replicas", "2"], ["--role", "both"], ["--kv-events-endpoint", "tcp://*:1"]])
@pytest.mark.parametrize(
    ("pool", "named"),
    [
        (["--enable-control-routes"], "--enable-control-routes"),
        (["--alias", "x=a"], "--alias"),
        (["--keep-alive", "5m"], "--keep-alive"),
        (["--alias", "x=a", "--keep-alive", "5m"], "--keep-alive and --alias"),
    ],
)
def test_the_option_that_makes_a_pool_is_named(
    check: list[str],
    pool: list[str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from headrace.cli import serve_plan

    monkeypatch.setattr(serve_plan, "show_serve_plan", lambda config, name, others: print(*others) or 2)
    (tmp_path / "a").mkdir()
    assert main(["serve", str(tmp_path / "a"), "--dry-run", *check, *pool]) == 2
    assert f"{check[0]}" in (text := capsys.readouterr().out)
    assert f"one model that stays loaded: leave it out, or {named}\n" in text


def test_a_dry_run_shows_what_the_file_gives_a_model(file: str) -> None:
    chosen = served("--config", file)
    first, second = (chosen.shown_config(entry) for entry in chosen.entries)
    assert first.loading.aliases == {"first": "one"}
    assert "aliases" in first.loading.model_fields_set
    assert "aliases" not in second.loading.model_fields_set
    # The file names the second; nobody names the first.
    assert "served_model_name" not in first.server.model_fields_set
    assert second.server.served_model_name == "two"
    both = served("--config", file, "--preload", "two")
    assert both.shown_config(both.entries[0]).loading.preload == "two"
    assert "served_model_name" not in served("a").config_of(served("a").entries[0]).server.model_fields_set


def test_a_dry_run_shows_a_files_preload(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("models: [{model: one, preload: true}, two]")
    chosen = served("--config", str(path))
    assert [chosen.shown_config(entry).loading.preload for entry in chosen.entries] == ["one", None]


def test_a_role_may_stand_at_the_model(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("kv_listen: localhost:1\nmodels: [{model: one, role: both}]")
    (plan,) = plans("--config", str(path))
    assert (plan.config.transfer.role, plan.config.transfer.kv_listen) == ("both", "localhost:1")
    path.write_text("kv_listen: localhost:1\nmodels: [one]")
    with pytest.raises(ConfigError, match="--kv-listen: no blocks pass between engines without a role"):
        served("--config", str(path))
