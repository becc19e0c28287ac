"""`headrace program`: compile, check, graph, run, schema."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from lang_fakes import FakeServer

import headrace.lang
from headrace import lang as hl
from headrace.cli.main import main

SOURCE = """
from __future__ import annotations

from pydantic import BaseModel
from headrace import lang as hl

class City(BaseModel):
    name: str

@hl.program
def helper(s):
    s.text("x")

@hl.program
def capital(s, country: str, times: hl.Static[int] = 1):
    for _ in range(times):
        s.user("Capital of ", country, "?")
        s.assistant(hl.gen("answer", max_tokens=8))
    s.user("As JSON")
    s.assistant(hl.gen("city", type=City, max_tokens=20))
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "capital.py"
    path.write_text(SOURCE)
    return str(path)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    server = FakeServer(lambda text: '{"name": "Rome"}' if "JSON" in text else f"Say {text[18:23]}")
    monkeypatch.setattr(headrace.lang, "server", lambda url, model, api_key: server.on)
    return server


def test_compile_prints_a_plan_that_check_and_run_take(
    file: str, fake: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(tmp_path / "plan.json")
    assert main(["program", "compile", file, "times=2", "-o", plan]) == 0
    assert json.loads(Path(plan).read_bytes())["format"] == "headrace.plan"
    assert main(["program", "check", plan]) == 0
    assert capsys.readouterr().out == ("capital: at most 36 tokens in 3 generations, 1 branch at once, 18 operations\n")
    assert main(["program", "run", plan, "country=Italy", "--url", "x"]) == 0
    assert json.loads(capsys.readouterr().out)["city"] == {"name": "Rome"}
    assert len(fake.bodies) == 3


def test_a_program_of_a_file_is_chosen_by_name(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["program", "check", f"{file}:helper"]) == 0
    assert capsys.readouterr().out.startswith("helper: at most 0 tokens")
    assert main(["program", "check", f"{file}:other"]) == 2
    assert "has no program 'other'; it has: helper, capital" in capsys.readouterr().err


def test_graph_is_svg(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["program", "graph", file]) == 0
    picture = ElementTree.fromstring(capsys.readouterr().out)
    texts = ["".join(node.itertext()) for node in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert "program capital" in texts
    assert any(text.startswith("gen city") for text in texts)


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["program", "schema"]) == 0
    assert "$defs" in json.loads(capsys.readouterr().out)


def test_check_lists_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(
        "from headrace import lang as hl\n@hl.program\ndef wrong(s):\n    with hl.if_(False):\n        s.text('x')\n"
        "    s.gen('x', json={'enum': []})\n"
    )
    assert main(["program", "check", str(file)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "error: body.ops[1] (wrong.py:6): no text meets the constraint: $: `enum` is empty"
    assert out[1].startswith("warning: body.ops[0].then (wrong.py:4): this block never runs")
    assert out[2] == "wrong: refused"
    assert main(["program", "compile", str(file)]) == 2
    assert "body.ops[1] (wrong.py:6): no text meets" in capsys.readouterr().err


def test_run_streams_texts_and_prints_the_outputs(
    file: str, fake: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["program", "run", file, "country=Italy", "times=2", "--url", "x", "--stream", "--seed", "3"]) == 0
    found = capsys.readouterr()
    assert json.loads(found.out)["city"] == {"name": "Rome"}
    assert found.err.count("answer: Say") == 2
    assert fake.bodies[0][1]["messages"][0]["content"] == "Capital of Italy?"
    assert "seed" in fake.bodies[0][1]


def test_rows_give_a_line_each(file: str, fake: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"country": "Spain"}\n\n{"country": "Italy"}\n')
    assert main(["program", "run", file, "--rows", str(rows), "--url", "x"]) == 0
    assert [json.loads(line)["city"] for line in capsys.readouterr().out.splitlines()] == [{"name": "Rome"}] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "FILE", "country"], "give an argument as NAME=VALUE"),
        (["run", "FILE", "country=@/nowhere"], "/nowhere: No such file"),
        (["run", "FILE"], "no value for 'country': add country=VALUE behind the file"),
        (["run", "FILE"], "or --rows FILE with a JSON object of inputs on each line"),
        (["run", "NEEDS"], "program 'needs' has no value for 'a', 'c': add a=VALUE c=VALUE behind the file"),
        (["run", "FILE", "contry=Italy"], "it has no input 'contry'; its inputs: country"),
        (["run", "NEEDS", "a=1", "c=1", "d=1"], "needs: there is no input 'd'; there are: a, b, c"),
        (["run", "FILE", "--rows", "/nowhere"], "/nowhere: No such file"),
        (["run", "/nowhere.py"], "/nowhere.py: no such file"),
        (["run", "/nowhere.json"], "/nowhere.json: No such file"),
        (["run", "BROKEN"], "cannot be executed: ZeroDivisionError"),
        (["run", "FILE", "country=Italy", "--stream", "--rows", "ROWS"], "--stream shows one run: leave out --rows"),
        (["compile", "FILE", "tims=2"], "it has no input 'tims'; its inputs: country, times"),
        (["graph", "FILE", "country=Italy"], "`country` is an input of each run"),
        (["check", "PLAN", "times=2"], "is a plan: it has been compiled, so there is no `times`"),
        (["check", "EMPTY"], "has no program: put @program"),
        (["check", "TEXT"], "not JSON"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str],
    message: str,
    file: str,
    fake: FakeServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = hl.encode_plan(hl.program(name="a")(lambda s: s.text("a")).compile()).decode()
    needs = hl.encode_plan(hl.program(name="needs")(lambda s, a, c, b=1: s.text(a, c, b)).compile()).decode()
    texts = {"BROKEN": ("b.py", "1 / 0"), "EMPTY": ("e.py", ""), "TEXT": ("t.json", "hello"), "PLAN": ("p.json", plan)}
    texts["NEEDS"] = ("needs.json", needs)
    for name, content in texts.values():
        (tmp_path / name).write_text(content)
    files = {"FILE": file} | {key: str(tmp_path / name) for key, (name, _) in texts.items()}
    given = [files.get(one, one) for one in arguments]
    assert main(["program", *given, *(["--url", "x"] if arguments[0] == "run" else [])]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_wrong_priority_shows_before_a_model_is_loaded(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headrace.cli.model_fetch.fetch_model", lambda *_: pytest.fail("fetched"))
    assert main(["program", "run", file, "country=Italy", "--priority", str(2**31)]) == 2
    assert "a priority is a whole number from -2^31" in capsys.readouterr().err
