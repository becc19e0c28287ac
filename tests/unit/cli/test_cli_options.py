"""Command-line options become the configuration."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from headrace import server
from headrace.argument_parser import ArgumentParser
from headrace.arguments import add_engine_options, add_server_options, engine_options
from headrace.cli import serve_command
from headrace.cli.command_options import add_sampling_options, build_config, sampling, with_whitespace
from headrace.cli.main import main
from headrace.config import Config, parse_size
from headrace.engine.launch import EngineProcessHandle
from headrace.errors import ConfigError
from headrace.options import ENGINE, SERVER, make_config
from headrace.types import SamplingParams


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="smollm2")
    add_engine_options(parser)
    add_server_options(parser)
    return parser.parse_args(arguments)


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_API_KEY", raising=False)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000", 1000),
        ("2GiB", 2 << 30),
        ("2Gi", 2 << 30),
        ("1.5 MiB", 3 << 19),
        ("500M", 500 * 10**6),
        ("3kb", 3000),
        ("7B", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1 TB", "1i", "GiB", "1..5M"])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="2GiB"):
        parse_size(text)


def test_nothing_given_is_the_default_configuration() -> None:
    assert build_config(parse()) == Config()
    assert engine_options(parse()) == {}


EVERYTHING = (
    "m.gguf --platform p --device-index 1 --device-option a=1 --device-option b=c --threads 3 --tensor-parallel-size 2 "
    "--pipeline-parallel-size 2 --expert-parallel "
    "--dtype float32 --quantize int8 --max-model-len 99 --max-num-seqs 4 --max-num-batched-tokens 64 --max-waiting 5 "
    "--kv-dtype int8 --kv-memory 1Ki --block-size 32 --num-blocks 9 --no-prefix-caching --chat-template t.jinja "
    "--generation-config none --kv-host-memory 2Ki --kv-disk d:1k --role both --kv-connector shm --kv-listen a:1 "
    "--kv-secret-file f --kv-shelf 4k --kv-lease 9 --kv-timeout 8 "
    "--grammar-backend mill --packed-cache 3k --host h --port 1 --api-key k --served-model-name n --drain-timeout 2.5 "
    "--speculate ngram --draft-quantization int8 "
    "--cors-origin https://c.example --tool-format hermes --reasoning-format think "
    "--state-dir s --api-keys-file k.yaml --log-format json --uds u --ssl-certfile c.pem --ssl-keyfile k.pem "
    "--root-path /llm --tracing --enable-control-routes --kv-share 0.5 --alias x=m --alias y=1 --max-waiting-tokens 77 "
    "--models-memory 2Ki --models-max 3 --keep-alive 1m30s --load-timeout 9 --preload x --kv-events-endpoint tcp://*:1 "
    "--replicas 2 --ray-address local --min-replicas 1 --max-replicas 3 --target-ttft 1s --target-queue 2 "
    "--max-restarts 1 --start-timeout 9 --profile-dir d"
)


def test_every_option_has_its_place() -> None:
    assert build_config(parse(*EVERYTHING.split())).model_dump() == {
        "model": {
            "model": "m.gguf",
            "dtype": "float32",
            "quantize": "int8",
            "max_model_len": 99,
            "chat_template": "t.jinja",
            "generation_config": "none",
            "grammar_backend": "mill",
            "packed_cache": 3000,
        },
        "cache": {
            "block_size": 32,
            "kv_dtype": "int8",
            "kv_memory": 1024,
            "kv_share": 0.5,
            "num_blocks": 9,
            "prefix_caching": False,
            "kv_host_memory": 2048,
            "kv_disk": "d:1k",
        },
        "scheduler": {
            "max_num_seqs": 4,
            "max_num_batched_tokens": 64,
            "max_waiting": 5,
            "speculate": "ngram",
            "draft_quantization": "int8",
        },
        "device": {"platform": "p", "index": 1, "threads": 3, "options": {"a": 1, "b": "c"}},
        "parallel": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "expert_parallel": True},
        "transfer": {
            "role": "both",
            "kv_connector": "shm",
            "kv_listen": "a:1",
            "kv_secret_file": "f",
            "kv_shelf": 4000,
            "kv_lease": 9.0,
            "kv_timeout": 8.0,
        },
        "server": {
            "host": "h",
            "port": 1,
            "api_key": "k",
            "api_keys_file": "k.yaml",
            "served_model_name": "n",
            "drain_timeout": 2.5,
            "cors_origin": "https://c.example",
            "tool_format": "hermes",
            "reasoning_format": "think",
            "state_dir": "s",
            "uds": "u",
            "ssl_certfile": "c.pem",
            "ssl_keyfile": "k.pem",
            "root_path": "/llm",
            "log_format": "json",
            "max_waiting_tokens": 77,
            "tracing": True,
            "enable_control_routes": True,
            "kv_events_endpoint": "tcp://*:1",
            "profile_dir": "d",
        },
        "loading": {
            "aliases": {"x": "m", "y": "1"},
            "models_memory": 2048,
            "models_max": 3,
            "keep_alive": 90.0,
            "load_timeout": 9.0,
            "preload": "x",
        },
        "scale": {
            "replicas": 2,
            "ray_address": "local",
            "min_replicas": 1,
            "max_replicas": 3,
            "target_ttft": 1.0,
            "target_queue": 2.0,
            "max_restarts": 1,
            "start_timeout": 9.0,
        },
    }


def test_every_option_has_a_description() -> None:
    for option in (*ENGINE.values(), *SERVER.values()):
        assert option.info.description, option.name
        assert option.info.description[0].isupper(), option.name


def test_sizes_may_be_texts_in_python_too() -> None:
    assert make_config("m", {"kv_memory": "2GiB"}).cache.kv_memory == 2 << 30
    with pytest.raises(ConfigError, match=r"option kv_memory='1 TB'.*2GiB"):
        make_config("m", {"kv_memory": "1 TB"})


def test_unknown_options_are_named() -> None:
    with pytest.raises(ConfigError, match="unknown option 'max_len'; there are block_size, "):
        make_config("m", {"max_len": 9})


@pytest.mark.parametrize(
    "option", ["kv_connector=tcp", "kv_listen=a:1", "kv_secret_file=f", "kv_shelf=4k", "kv_lease=9", "kv_timeout=8"]
)
def test_options_of_passing_blocks_need_a_role(option: str) -> None:
    name, _, value = option.partition("=")
    with pytest.raises(ConfigError, match=f"^{name}: no blocks pass .* add role='prefill', 'decode' or 'both'"):
        make_config("m", {name: value})
    flag = "--" + name.replace("_", "-")
    with pytest.raises(ConfigError, match=f"^{flag}: no blocks pass .* add --role prefill, decode or both"):
        make_config("m", {name: value}, flags=True)
    assert make_config("m", {name: value, "role": "both"}).transfer.role == "both"


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("name", [name for name, option in {**ENGINE, **SERVER}.items() if bool not in option.kinds])
def test_a_boolean_is_no_value(name: str, value: bool) -> None:
    with pytest.raises(ConfigError, match=f"option {name}={value}: "):
        make_config("m", {name: value})


def test_the_engines_options_are_those_of_llm() -> None:
    options = engine_options(parse(*EVERYTHING.split()))
    assert set(options) == set(ENGINE)
    assert make_config("m", options).cache.kv_memory == 1024
    assert options["prefix_caching"] is False
    assert options["kv_memory"] == 1024


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--port 99999", r"--port 99999: it must be at most 65535"),
        ("--dtype float8", r"--dtype float8: .*'float32'"),
        ("--max-num-seqs 0", r"--max-num-seqs 0: "),
        ("--device-index -1", r"--device-index -1: "),
    ],
)
def test_a_wrong_value_names_its_option(arguments: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(parse(*arguments.split()))


def test_the_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_API_KEY", "secret")
    assert build_config(parse()).server.api_key == "secret"
    assert build_config(parse("--api-key", "mine")).server.api_key == "mine"


def test_sampling_options_are_those_of_sampling_params() -> None:
    parser = argparse.ArgumentParser()
    add_sampling_options(parser, temperature=0.5, max_tokens=9)
    assert sampling(parser.parse_args([])) == {
        "max_tokens": 9,
        "temperature": 0.5,
    }
    args = parser.parse_args("--stop a --stop b --seed 3 --top-k 4 --temperature 0".split())
    params = SamplingParams(**sampling(args))
    assert (params.stop, params.seed, params.top_k, params.temperature) == (("a", "b"), 3, 4, 0.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("m --seed 3 hi", ["hi"]),
        ("--seed 3 m hi you", ["hi", "you"]),
        ("m hi --seed 3 you", ["hi", "you"]),
        ("m --choice yes --choice no hi --seed 3 -", ["hi", "-"]),
        ("m --seed 3", []),
    ],
)
def test_options_stand_anywhere(arguments: str, words: list[str]) -> None:
    """Between a model and its prompt, too, where argparse alone refuses the prompt."""
    parser = ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("words", nargs="*")
    add_sampling_options(parser, temperature=0.5, max_tokens=9)
    args = parser.parse_args(arguments.split())
    assert (args.model, args.words) == ("m", words)


@pytest.mark.parametrize("arguments", ["m --sed 3 hi", "m --seed 3 hi --sed", "m --seed 3 hi -x"])
def test_words_behind_an_unknown_option_are_refused(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("words", nargs="*")
    add_sampling_options(parser, temperature=0.5, max_tokens=9)
    with pytest.raises(SystemExit):
        parser.parse_args(arguments.split())
    assert "unrecognized arguments" in capsys.readouterr().err


def test_options_between_numbers_and_behind_a_subcommand() -> None:
    parser = ArgumentParser()
    inner = parser.add_subparsers(dest="verb").add_parser("run")
    inner.add_argument("numbers", nargs="+", type=int)
    inner.add_argument("--seed", type=int)
    args = parser.parse_args(["run", "1", "--seed", "2", "3"])
    assert (args.numbers, args.seed) == ([1, 3], 2)
    with pytest.raises(SystemExit):
        parser.parse_args(["run", "1", "--seed", "2", "three"])


def test_the_form_of_the_answer(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_sampling_options(parser, temperature=0.5, max_tokens=9)
    file = tmp_path / "schema.json"
    file.write_text('{"type": "object"}')

    def form(*arguments: str) -> Any:
        params = sampling(parser.parse_args(arguments))
        assert SamplingParams(**params).structured_outputs is not None
        return params["structured_outputs"]

    schema = {"json": {"type": "object"}}
    assert form("--json-schema", str(file)) == schema
    unasked = {"structured_outputs": schema, "max_tokens": 9}
    assert with_whitespace(unasked)["structured_outputs"] == {**schema, "whitespace": "compact"}
    assert unasked["structured_outputs"] == schema
    for kept in (
        {"structured_outputs": {"regex": "a"}},
        {"max_tokens": 9},
        {"structured_outputs": {**schema, "whitespace": "flexible"}},
    ):
        assert with_whitespace(kept) == kept
    assert form("--json-schema", str(file), "--whitespace", "flexible") == {**schema, "whitespace": "flexible"}
    assert form("--regex", "a+") == {"regex": "a+"}
    assert form("--choice", "yes", "--choice", "no") == {"choice": ["yes", "no"]}
    with pytest.raises(SystemExit):
        parser.parse_args(["--regex", "a", "--choice", "b"])
    with pytest.raises(ConfigError, match="--whitespace flexible: it goes with --json-schema"):
        sampling(parser.parse_args(["--regex", "a", "--whitespace", "flexible"]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("{", "is not JSON: Expecting property name"),
        ("[]", "a schema is an object, not list"),
    ],
)
def test_a_schema_that_cannot_be_read(tmp_path: Path, text: str | None, message: str) -> None:
    parser = argparse.ArgumentParser()
    add_sampling_options(parser, temperature=0.5, max_tokens=9)
    file = tmp_path / "schema.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=f"--json-schema .*schema.json: .*{message}"):
        sampling(parser.parse_args(["--json-schema", str(file)]))


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("max_num_seqs", 0, "at least 1"),
        ("kv_share", 3, "at most 1"),
        ("target_queue", 0, "above 0"),
        ("port", "x", "a whole number"),
        ("port", 1.5, "a whole number"),
        ("dtype", "x", "'auto', 'float32', 'bfloat16' or 'float16'"),
        ("prefix_caching", "x", "true or false"),
        ("host", 3, "a text"),
        ("threads", float("inf"), "a finite number"),
        ("device_options", [], "a mapping of names to values"),
    ],
)
def test_values_that_a_field_does_not_take(option: str, value: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=f": it must be {why}$"):
        make_config("m", {option: value})


def test_a_prompt_that_is_empty(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with open("/dev/null") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(["generate"]) == 2
    assert "there is no prompt: standard input is empty; give a PROMPT, or pipe one in" in capsys.readouterr().err


class TestServe:
    def test_hands_the_server_its_configuration(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[tuple[object, ...]] = []
        monkeypatch.setattr(server, "run", lambda *arguments: seen.append(arguments) or 0)
        model = tmp_path / "m.gguf"
        model.touch()
        assert main(["serve", str(model), "--port", "0", "--prompt", "Hello?"]) == 0
        ((config, path, prompt, launched, progress),) = seen
        assert isinstance(launched, EngineProcessHandle)
        assert progress is None
        assert isinstance(config, Config)
        assert (config.server.port, config.model.model) == (0, str(model))
        assert path == model
        assert prompt == "Hello?"

    def test_without_a_model_the_default_one_is_served(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[tuple[object, ...]] = []
        monkeypatch.setattr(server, "run", lambda *arguments: seen.append(arguments) or 0)
        monkeypatch.setattr(serve_command, "fetch_model", lambda name, accepted: Path(name))
        assert main(["serve"]) == 0
        assert seen[0][1:3] == (Path("smollm2"), None)

    def test_a_wrong_option_is_reported_before_anything_is_fetched(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(serve_command, "fetch_model", lambda name, accepted: pytest.fail("fetched"))
        assert main(["serve", "--port", "70000"]) == 2
        assert capsys.readouterr().err == "error: --port 70000: it must be at most 65535\n"

    def test_a_missing_model(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["serve", "./no/such/model"]) == 2
        assert "smollm2, gemma3-270m" in capsys.readouterr().err

    def test_a_wrong_log_level_is_an_error(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("HEADRACE_LOG", "loud")
        assert main(["serve"]) == 2
        assert "HEADRACE_LOG='loud'" in capsys.readouterr().err
