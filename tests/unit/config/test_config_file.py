"""The file of `headrace serve --config`: options flat or in parts, models with their own, errors with file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.config_fields import parse_duration
from headrace.config_file import ConfigFile, ModelEntry, read_config_file
from headrace.errors import ConfigError
from headrace.options import ENGINE, SERVER

YAML = """
port: 9000
kv-memory: 2GiB          # as the flag is written
scheduler:
  max_num_seqs: 4
device:
  options: {tape: 0}
keep_alive: 10m
models:
  - smollm2
  - model: ./qwen
    name: qwen
    aliases: [gpt-4o, default]
    preload: true
    threads: 2
    cache: {kv_dtype: int8}
    tool_format: none
"""
TOML = """
port = 9000
"kv-memory" = "2GiB"
keep_alive = "10m"

[scheduler]
max_num_seqs = 4

[device]
options = { tape = 0 }

[[models]]
model = "smollm2"

[[models]]
model = "./qwen"
name = "qwen"
aliases = ["gpt-4o", "default"]
preload = true
threads = 2
tool_format = "none"
[models.cache]
kv_dtype = "int8"
"""


def read(tmp_path: Path, text: str, name: str = "headrace.yaml") -> ConfigFile:
    file = tmp_path / name
    file.write_text(text)
    return read_config_file(file)


@pytest.mark.parametrize(("text", "name"), [(YAML, "a.yaml"), (YAML, "a.yml"), (TOML, "a.toml")])
def test_both_languages_say_the_same(tmp_path: Path, text: str, name: str) -> None:
    found = read(tmp_path, text, name)
    assert dict(found.options) == {
        "port": 9000,
        "kv_memory": "2GiB",
        "max_num_seqs": 4,
        "device_options": {"tape": 0},
        "keep_alive": "10m",
    }
    own = {"threads": 2, "kv_dtype": "int8", "tool_format": "none"}
    qwen = ModelEntry("./qwen", "qwen", ("gpt-4o", "default"), True, own)
    assert (found.models[0].model, found.models[1]) == ("smollm2", qwen)
    assert qwen.called("gpt-4o")


def test_one_model(tmp_path: Path) -> None:
    assert read(tmp_path, "model: smollm2\nthreads: 2\n").models == (ModelEntry("smollm2"),)
    in_part = read(tmp_path, "model: {model: smollm2, dtype: float32}\n")
    assert (in_part.models, dict(in_part.options)) == ((ModelEntry("smollm2"),), {"dtype": "float32"})
    assert read(tmp_path, "").models == ()


WRITTEN = {"speculate": "ngram", "cors_origin": "https://x.example", "root_path": "/x"}
SAMPLES: dict[type, Any] = {int: 3, float: 0.5, str: "text", bool: True}


def taken(tmp_path: Path, text: str) -> dict[str, Any] | str:
    """The options; of one with a rule of its own for its value, only that it is known."""
    try:
        return dict(read(tmp_path, text, "a.json").options)
    except ConfigError as error:
        return "not this value" if "unknown option" not in str(error) else str(error)


@pytest.mark.parametrize("name", [*ENGINE, *SERVER])
def test_every_option_may_stand_in_a_file_by_either_name(tmp_path: Path, name: str) -> None:
    import json

    option = {**ENGINE, **SERVER}[name]
    if option.is_mapping:
        value: Any = {"a": "b"}
    elif option.choices:
        value = option.choices[0]
    else:
        value = {"speculate": "ngram", "cors_origin": "https://x.example", "root_path": "/x"}.get(
            name, SAMPLES.get(option.kind, "2k")
        )
    value = "2m" if name in ("keep_alive", "load_timeout") else value
    for text in ({name: value}, {name.replace("_", "-"): value}, {option.section: {option.field: value}}):
        assert taken(tmp_path, json.dumps(text)) in ({name: value}, "not this value")


def test_options_that_go_together(tmp_path: Path) -> None:
    assert len(read(tmp_path, "ssl_keyfile: k.pem\nssl_certfile: c.pem\n").options) == 2
    with pytest.raises(ConfigError, match=r"line 2: `ssl_keyfile` 'k\.pem': a key needs its certificate"):
        read(tmp_path, "port: 1\nssl_keyfile: k.pem\n")


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("port: 1\nmax_num_seq: 4\n", 2, "unknown option `max_num_seq`: did you mean `max_num_seqs`?"),
        ("no-prefix-caching: true\n", 1, "did you mean `prefix_caching`?"),
        ("cache:\n  kv_memry: 1\n", 2, "unknown option `kv_memry` in the part `cache`: did you mean `kv_memory`?"),
        ("scheduler: 5\n", 1, "`scheduler` is a part: it holds options, such as draft_quantization, max_"),
        ("zzzzzz: 1\n", 1, "unknown option `zzzzzz`: there are "),
        ("\nport: many\n", 2, "`port` 'many': it must be a whole number"),
        ("kv_memory: lots\n", 1, "is no size: write it as 2GiB"),
        ("keep_alive: soon\n", 1, "is no time: write it as 10m"),
        ("port: 1\nserver:\n  port: 2\n", 3, "`port` is given twice"),
        ("port: 1\nport: 2\n", 2, "'port' stands in line 1 already"),
        ("models: smollm2\n", 1, "`models` is a list"),
        ("models: []\n", 1, "`models` is a list"),
        ("models:\n  - a\n  - {name: b}\n", 3, "is a name, or a mapping with `model`"),
        ("models:\n  - model: a\n    port: 2\n", 3, "it is for the whole server"),
        ("models:\n  - model: a\n    thread: 2\n", 3, "did you mean `threads`?"),
        ("models:\n  - model: a\n    threads: 0\n", 3, "`threads` 0: it must be at least 1"),
        ("models:\n  - model: a\n    alias: [b]\n", 3, "did you mean `aliases`?"),
        ("models:\n  - model: a\n    aliases: b\n", 3, "`aliases` is a list"),
        ("models:\n  - model: a\n    preload: maybe\n", 3, "`preload` is true or false"),
        ("models:\n  - model: a\n    name: ''\n", 3, "a name is a text that is not empty"),
        ("models: [a]\nmodel: b\n", 1, "`model` and `models` are given"),
        ("port: [1\n", 2, "this is not YAML"),
        ("port: 1\n x: 2\n", 2, "this is not YAML"),
    ],
)
def test_errors_name_file_line_and_remedy(tmp_path: Path, text: str, line: int, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert f"headrace.yaml, line {line}: " in str(caught.value)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("port = 1\n\n[cache]\nkv_memry = 1\n", ", line 4: ", "did you mean `kv_memory`?"),
        ('[[models]]\nmodel = "a"\n[[models]]\nmodel = "b"\nthread = 1\n', ", line 5: ", "did you mean `threads`?"),
        ("port = \n", ": ", "this is not TOML"),
        ("cache = { kv_memry = 1 }\n", ", line 1: ", "did you mean `kv_memory`?"),
    ],
)
def test_errors_in_toml(tmp_path: Path, text: str, where: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text, "headrace.toml")
    assert f"headrace.toml{where}" in str(caught.value)
    assert what in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_config_file(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"ends in \.yaml"):
        read(tmp_path, "port: 1", "headrace.ini")
    with pytest.raises(ConfigError, match="a mapping of options"):
        read(tmp_path, "- a\n")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_config_file(tmp_path / "bytes.yaml")
    with pytest.raises(ConfigError, match="bytes at most"):
        read(tmp_path, "# " + "x" * (1 << 20))
    with pytest.raises(ConfigError, match="nested too deeply"):
        read(tmp_path, "[" * 2000)
    with pytest.raises(ConfigError, match="not YAML"):
        read(tmp_path, "port: !!python/object/apply:os.system ['true']\n")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("-1", -1),
        ("-1s", -1),
        ("0", 0),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("1d", 86400),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert parse_duration(seconds) == seconds


@pytest.mark.parametrize("text", ["", "m", "10 m", "1x", "ten", "1h-5m"])
def test_invalid_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="10m"):
        parse_duration(text)
