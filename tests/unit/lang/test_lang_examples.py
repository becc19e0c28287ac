"""The programs under examples/programs, on a server that answers from a script."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from lang_fakes import FakeServer

from headrace import lang as hl
from headrace.errors import ProgramError

FOLDER = Path(__file__).parents[3] / "examples" / "programs"
FILES = sorted(FOLDER.glob("*.py"))


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_example_is_a_plan_without_problems(path: Path) -> None:
    programs = [one for one in vars(example(path.stem)).values() if isinstance(one, hl.Program)]
    assert programs
    for program in programs:
        plan = program.compile()
        assert hl.check(plan).problems == []
        assert hl.decode_plan(hl.encode_plan(plan)) == plan
        assert hl.plan_graph(plan).endswith("</svg>\n")


def test_the_readme_lists_each_file() -> None:
    text = (FOLDER / "README.md").read_text()
    assert [path.name for path in FILES if f"`{path.name}`" not in text] == []


def test_few_shot() -> None:
    fake = FakeServer(likes="Sentiment: positive")
    assert example("few_shot").classify.run("Nice.", on=fake.on)["label"] == "positive"


def test_json_extraction() -> None:
    module = example("json_extraction")
    said = {"supplier": "Acme", "total": 12.5, "currency": "EUR", "paid": True}
    found = module.extract.run("An invoice.", on=FakeServer(lambda text: json.dumps(said)).on)
    assert found["invoice"] == module.Invoice(**said)
    wrong = FakeServer(lambda text: json.dumps({**said, "total": -1}))
    with pytest.raises(ProgramError, match="a total is not negative"):
        module.extract.run("An invoice.", on=wrong.on)


def test_chat_memory() -> None:
    def answer(text: str) -> str:
        return "The user is Ada." if "Write the notes" in text else "Ada!" if "is Ada" in text else "Hello."

    found = example("chat_memory").chat.run(["I am A.", "Who am I?"], on=FakeServer(answer).on)
    assert found["replies"] == ["Hello.", "Ada!"]
    assert found["memory"] == "The user is Ada."
    assert [one["role"] for one in found.messages] == ["user", "assistant"] * 2


def test_react_agent() -> None:
    class Scripted(FakeServer):
        """Looks up, calculates, finishes."""

        def _echoed(self, body: dict[str, object]) -> dict[str, object]:
            text = "".join(map(chr, body["prompt"][0]))  # type: ignore[index]
            order = ["look up", "calculate", "finish"]
            self.likes = "Action: " + order[text.count("Observation")]
            return super()._echoed(body)

    def answer(text: str) -> str:
        if text.endswith("Input: "):
            return ["days in a week", "7*7", "49"][text.count("Observation")]
        return " hm"

    found = example("react_agent").agent.run("How many?", on=Scripted(answer).on)
    assert found["answer"] == "49"
    assert "Input: days in a week\nObservation: 7\n" in found.text
    assert "Input: 7*7\nObservation: 49\n" in found.text
    act = example("react_agent").act
    assert act("calculate", "2 + 3 * 4 - 1") == "13"
    assert act("calculate", "__import__('os')") == "no expression of numbers"
    assert act("look up", "nothing") == "not found"


def test_self_consistency() -> None:
    numbers = itertools.cycle(["42", "41", "42"])
    fake = FakeServer(lambda text: next(numbers) if text.endswith("number is ") else "Hm.")
    found = example("self_consistency").vote.run("17 + 25?", samples=6, on=fake.on)
    assert found["answer"] == 42
    assert sorted(found["answers"]) == [41, 41, 42, 42, 42, 42]


def test_tree_of_thought() -> None:
    module = example("tree_of_thought")
    fake = FakeServer(lambda text: " walk", likes="? likely")
    found = module.solve.run("Go.", on=fake.on)
    assert found["plan"] == "- walk\n- walk"
    assert module.best_of(["a", "b", "c"], [" impossible", " sure", " likely"]) == "b"


def test_skeleton_of_thought() -> None:
    def answer(text: str) -> str:
        return (
            '["one", "two", "three"]' if "as a JSON list" in text and "point:" not in text else text.split("point: ")[1]
        )

    found = example("skeleton_of_thought").answer.run("Why?", on=FakeServer(answer).on)
    assert found["points"] == ["one", "two", "three"]
    assert [part.split("<")[0].strip() for part in found["answer"].split("\n\n")] == ["one", "two", "three"]


def test_map_reduce() -> None:
    fake = FakeServer(lambda text: "both" if "notes" in text else text.split("\n\n")[1].split("<")[0].upper())
    found = example("map_reduce").summarise.run(["first", "second"], on=fake.on)
    assert found["summaries"] == ["FIRST", "SECOND"]
    assert found["overall"] == "both"
    assert "- FIRST\n- SECOND" in fake.bodies[-1][1]["messages"][-1]["content"]


def test_judge() -> None:
    for likes, worst in (("Grade: D", "This one."), ("Grade: B", "")):
        fake = FakeServer(lambda text: "This one." if "worst" in text else "A note.", likes=likes)
        found = example("judge").grade.run("An essay.", on=fake.on)
        assert found["grade"] == likes[-1]
        assert found["notes"] == ["A note."] * 4
        assert found["worst"] == worst


def test_multiple_choice() -> None:
    assert example("multiple_choice").accuracy(FakeServer(likes="Answer: B").on) == 0.25


def test_graphs_show_call_outs_blocks_and_numbers_of_values() -> None:
    picture = hl.plan_graph(example("tree_of_thought").solve.compile())
    texts = re.findall(r"<text[^>]*>(.*?)</text>", picture)
    assert any(text.startswith("call-out to Python: best_of → [") for text in texts)
    assert any(re.fullmatch(r"fork over 3 → \[\d+\], \[\d+\]", text) for text in texts)
    assert "tree_of_thought.py:27" in texts
    assert "&lt;" in hl.plan_graph(example("judge").grade.compile())
