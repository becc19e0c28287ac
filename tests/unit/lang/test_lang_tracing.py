"""What tracing makes of programs, and which lines its errors name."""

from __future__ import annotations

import re
from typing import Any

import pytest
from lang_fakes import FakeBackend

from headrace import lang as hl
from headrace.errors import ProgramError
from headrace.lang.plan import CallOp, ForkOp, GenOp, IfOp, RoleBeginOp, TextOp, WhileOp


def kinds(plan: hl.Plan) -> list[str]:
    return [type(op).__name__.removesuffix("Op") for op in plan.body.ops]


def compiled(function: Any) -> hl.Plan:
    plan = hl.program(function).compile()
    assert hl.check(plan).problems == []
    assert hl.decode_plan(hl.encode_plan(plan)) == plan
    return plan


def test_messages_and_generations_become_operations() -> None:
    def talk(s: hl.State, topic: str) -> None:
        s.system("Be brief.")
        s.user("About ", topic)
        s.assistant("Well, ", hl.gen("said", max_tokens=5, temperature=0))

    plan = compiled(talk)
    assert kinds(plan) == [
        *["RoleBegin", "Text", "RoleEnd"] * 2,
        *["RoleBegin", "Text", "Gen", "RoleEnd"],
    ]
    assert [(param.name, param.type) for param in plan.inputs] == [("topic", "text")]
    assert list(plan.outputs) == ["said"]
    gen = next(op for op in plan.body.ops if isinstance(op, GenOp))
    assert gen.sampling == {"max_tokens": 5, "temperature": 0.0}
    assert re.fullmatch(r"test_lang_tracing\.py:\d+", gen.at)


def test_adding_to_the_state_is_the_same_as_its_methods() -> None:
    def one(s: hl.State) -> None:
        s += hl.user("a")
        s += hl.assistant(hl.gen("x"), "!")

    def two(s: hl.State) -> None:
        s.user("a")
        with s.assistant():
            s.gen("x")
            s.text("!")

    plans = [compiled(one), compiled(two)]
    assert kinds(plans[0]) == kinds(plans[1])


def test_types_of_inputs_come_from_annotations_and_defaults_go_into_the_plan() -> None:
    def many(s: hl.State, a: list[str], b: int = 3, c: dict[str, Any] | None = None, d=True) -> None:  # type: ignore[no-untyped-def]
        s.text("x")

    inputs = compiled(many).inputs
    assert [(one.type, one.required, one.default) for one in inputs] == [
        ("list<text>", True, None),
        ("int", False, 3),
        ("json", False, None),
        ("json", False, True),
    ]


def test_a_static_parameter_is_known_when_compiling() -> None:
    @hl.program
    def repeat(s: hl.State, count: hl.Static[int]) -> None:
        for number in range(count):
            s.text(f"{number} ")

    assert len(repeat.compile(count=3).body.ops) == 3
    assert repeat.compile(count=2) is repeat.compile(count=2)
    with pytest.raises(ProgramError, match="`count` is needed when it is compiled"):
        repeat.compile()
    with pytest.raises(ProgramError, match="has no input 'cuont'; its inputs: "):
        repeat.compile(cuont=2)


def test_branches_give_one_state_and_variables_that_may_be_unbound() -> None:
    def branch(s: hl.State, wanted: bool) -> Any:
        s["both"] = "none"
        with hl.if_(wanted):
            s.text("yes")
            s["both"] = "then"
            s["one"] = "set"
        with hl.else_():
            s["both"] = "else"
        return hl.out(one=s.get("one", "unset"))

    plan = compiled(branch)
    (op,) = (op for op in plan.body.ops if isinstance(op, IfOp))
    assert op.at.endswith(f":{branch.__code__.co_firstlineno + 2}"), "the line of the `if_`, not of the `else_`"
    for wanted, both, one in ((True, "then", "set"), (False, "else", "unset")):
        found = hl.load_plan(hl.encode_plan(plan)).run(wanted, on=FakeBackend())
        assert (found["both"], found["one"], found.text) == (both, one, "yes" if wanted else "")


def test_reading_what_only_one_branch_binds_is_an_error_with_the_remedy() -> None:
    def branch(s: hl.State, wanted: bool) -> None:
        with hl.if_(wanted):
            s["one"] = "set"
        s.text(s["one"])

    with pytest.raises(ProgramError, match=r"py:\d+: 'one' is not bound on every way to here: use s\.get"):
        compiled(branch)


def test_loops_carry_what_changes_and_nothing_else() -> None:
    def count(s: hl.State, limit: int) -> None:
        s["n"], s["same"] = 0, "fixed"
        with hl.while_(lambda: s["n"] < limit, max=10):
            s.text(s["n"], s["same"])
            s["n"] = s["n"] + 1
        with hl.for_(["a", "b"]) as item:
            s.text(item)

    plan = compiled(count)
    loop = next(op for op in plan.body.ops if isinstance(op, WhileOp))
    assert len(loop.init) == 2
    found = hl.load_plan(hl.encode_plan(plan)).run(2, on=FakeBackend())
    assert (found.text, found["n"]) == ("0fixed1fixedab", 2)
    assert hl.load_plan(hl.encode_plan(plan)).run(0, on=FakeBackend()).text == "ab"


def test_a_variable_first_bound_in_a_loop_may_be_unbound_behind_it() -> None:
    def last(s: hl.State, items: list[str]) -> Any:
        with hl.for_(items, max=5) as item:
            s["last"] = item
        return s.get("last", "none")

    plan = hl.load_plan(hl.encode_plan(compiled(last)))
    assert plan.run([], on=FakeBackend())["result"] == "none"
    assert plan.run(["a", "b"], on=FakeBackend())["result"] == "b"


def test_nested_control_flow() -> None:
    def nested(s: hl.State, rows: list[list[int]]) -> None:
        s["sum"] = 0
        with hl.for_(rows, max=4) as row, hl.for_(row, max=4) as number:
            with hl.if_(number > 1):
                s["sum"] = s["sum"] + number
            with hl.else_(), hl.if_(number < 0):
                s["negative"] = number

    found = hl.load_plan(hl.encode_plan(compiled(nested))).run([[1, 2], [3, -4]], on=FakeBackend())
    assert (found["sum"], found["negative"]) == (5, -4)


def test_forks_gather_what_branches_bind() -> None:
    def three(s: hl.State) -> Any:
        s.text("Q")
        with s.fork(3) as branch:
            branch.text(branch.index, ": ")
            branch.gen("answer")
        group = hl.fork(s, ["a", "b"], lambda b, item: b.text(item).gen("letter"))
        return hl.out(votes=branch["answer"], text=branch.join("answer", "/"), letters=group.gather("letter"))

    plan = compiled(three)
    assert [op.max for op in plan.body.ops if isinstance(op, ForkOp)] == [3, 2]
    found = hl.load_plan(hl.encode_plan(plan)).run(on=FakeBackend(lambda text: text[1:2]))
    assert found["votes"] == ["0", "1", "2"]
    assert found["text"] == "0/1/2"
    assert found["letters"] == ["a", "b"]
    assert found.text == "Q"


def test_a_program_inside_of_another_is_traced_in_its_place() -> None:
    @hl.program
    def ask(s: hl.State, question: str) -> Any:
        s.user(question)
        s.assistant(hl.gen("reply"))
        return s["reply"]

    def outer(s: hl.State) -> Any:
        first = ask(s, "one")
        other = hl.new_state()
        second = ask(other, first + "!")
        return hl.out(first=first, second=second)

    backend = FakeBackend(lambda text: str(len(text)))
    found = hl.load_plan(hl.encode_plan(compiled(outer))).run(on=backend)
    assert [one[0].messages for one in backend.asked] == [(("user", "one"),), (("user", found["first"] + "!"),)]
    assert [one["role"] for one in found.messages] == ["user", "assistant"]


def test_constants_are_values_inside_of_a_sub_program() -> None:
    @hl.program
    def inner(s: hl.State, word: str, others: list[str], times: hl.Static[int] = 2, end: str = "!") -> Any:
        for _ in range(times):
            s.text(word.upper(), others[1], end.replace("!", "."))
        return word.length()  # type: ignore[attr-defined]

    @hl.program
    def outer(s: hl.State, x: str) -> Any:
        return inner(s, "ab", ["c", x], times=1)

    found = outer.run("d", on=FakeBackend())
    assert (found.text, found["result"]) == ("ABd.", 2)

    @hl.program
    def wrong(s: hl.State) -> None:
        inner(s)

    with pytest.raises(ProgramError, match=r"py:\d+: program 'inner': missing a required argument: 'word'"):
        wrong.compile()


def test_recursion_is_refused() -> None:
    @hl.program
    def forever(s: hl.State) -> None:
        forever(s)

    with pytest.raises(ProgramError, match="a plan has no recursion"):
        forever.compile()


def test_a_call_out_names_its_function_and_has_its_type() -> None:
    def double(number: int) -> int:
        return 2 * number

    def use(s: hl.State, n: int) -> Any:
        return hl.call(double, n) + 1

    plan = compiled(use)
    call = next(op for op in plan.body.ops if isinstance(op, CallOp))
    assert (call.tool, call.type, list(call.args)) == ("double", "int", ["number"])
    assert hl.program(use).run(4, on=FakeBackend())["result"] == 9


def test_conditions_without_else_and_constants_of_state() -> None:
    def once(s: hl.State, wanted: bool) -> None:
        with hl.if_(wanted & True):
            s.user("a")

    ops = compiled(once).body.ops
    inner = next(op for op in ops if isinstance(op, IfOp))
    assert isinstance(inner.then.ops[0], RoleBeginOp)
    assert isinstance(inner.then.ops[1], TextOp)
    assert inner.orelse.ops == []


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda s, x: s.text(f"{x}"), "give it as an argument of its own"),
        (lambda s, x: s.text(str(x)), "give it as an argument of its own"),
        (lambda s, x: 1 if x else 2, "if_"),
        (lambda s, x: list(x), "call-out"),
        (lambda s, x: "a" in x, "value.contains"),
        (lambda s, x: len(x), "value.length"),
        (lambda s, x: int(x), "value.to_int"),
        (lambda s, x: [1, 2][x], "value\\[index\\]"),
        (lambda s, x: x + 1, "`add` cannot add text and int"),
        (lambda s, x: s["nothing"], "no variable 'nothing' is bound here; bound are: none"),
        (lambda s, x: s.gen("a", max_token=3), "did you mean `max_tokens`"),
        (lambda s, x: s.gen("a", temperature=-1), "temperature"),
        (lambda s, x: s.gen("a", n=2), "s.fork"),
        (lambda s, x: s.gen("a", max_tokens=None), "upper bound"),
        (lambda s, x: s.gen("a", regex="a", choices=["b"]), "exactly one"),
        (lambda s, x: s.gen("a", regex="a", stop="b"), "`stop` cannot be combined"),
        (lambda s, x: s.gen("a", type=int, regex="a"), "not both"),
        (lambda s, x: s.gen("", max_tokens=3), "1 to 200 characters"),
        (lambda s, x: s.select("a", []), "none of them empty"),
        (lambda s, x: s.select("a", ["b"], method="best"), "`method` is one of greedy"),
        (lambda s, x: s.user("a").gen("b"), "outside of a message"),
        (lambda s, x: s.user("a").text("b"), "text outside of a message"),
        (lambda s, x: s.text("a").user("b"), "begun as text"),
        (lambda s, x: s.user(hl.gen("b")), "in the user message"),
        (lambda s, x: s.text(object()), "cannot be part of a plan"),
        (lambda s, x: s.text(s), "a state is no text"),
        (lambda s, x: hl.while_(x == "a", max=3).__enter__(), "lambda"),
        (lambda s, x: hl.for_(x.split(",")).__enter__(), "`max` is needed"),
        (lambda s, x: hl.while_(lambda: x == "a").__enter__(), "`max` is needed"),
        (lambda s, x: hl.if_(x).__enter__(), "this is text"),
        (lambda s, x: hl.else_().__enter__(), "must follow"),
        (lambda s, x: hl.call(lambda: 1), "use def"),
        (lambda s, x: hl.call(place_of, 1, 2), "call 'place_of'"),
        (lambda s, x: hl.call("by_name", 1), "give arguments by name"),
        (lambda s, x: hl.require(x, "no"), "a condition is true or false"),
    ],
)
def test_misuse_names_the_line_and_the_remedy(misuse: Any, message: str) -> None:
    def wrong(s: hl.State, x: str) -> None:
        misuse(s, x)

    with pytest.raises(ProgramError, match=message) as caught:
        hl.program(wrong).compile()
    assert str(caught.value).startswith("test_lang_tracing.py:")


def place_of(one: int) -> int:
    return one


def test_a_generated_text_is_not_appended_twice() -> None:
    def wrong(s: hl.State) -> None:
        with s.assistant():
            s.gen("a")
        with s.fork(1) as b:
            b.assistant(s["a"])

    hl.program(wrong).compile()

    def again(s: hl.State) -> None:
        s.assistant(s.gen("a"))

    with pytest.raises(ProgramError, match=r"hl\.gen"):
        hl.program(again).compile()


def test_values_of_a_block_that_has_ended_are_refused() -> None:
    def wrong(s: hl.State, items: list[str]) -> None:
        with hl.for_(items, max=3) as item:
            kept = item + "!"
        s.text(kept)

    with pytest.raises(ProgramError, match="a block that has ended"):
        hl.program(wrong).compile()


def test_a_fork_cannot_change_the_states_around_it() -> None:
    def wrong(s: hl.State) -> None:
        with s.fork(2):
            s.text("not the branch")

    with pytest.raises(ProgramError, match="change the branch alone"):
        hl.program(wrong).compile()


def test_a_message_ends_in_the_block_in_which_it_begins() -> None:
    def wrong(s: hl.State, x: bool) -> None:
        with s.assistant(), hl.if_(x):
            s.end()

    with pytest.raises(ProgramError, match="must begin and end in the same block"):
        hl.program(wrong).compile()


def test_a_loop_keeps_the_types_of_variables() -> None:
    def wrong(s: hl.State) -> None:
        s["x"] = 1
        with hl.for_(3):
            s["x"] = "text"

    with pytest.raises(ProgramError, match="'x' is int before the loop and text"):
        hl.program(wrong).compile()


def test_programs_need_a_state_and_named_inputs() -> None:
    with pytest.raises(ProgramError, match="the first parameter is the state"):
        hl.program(lambda: None)
    with pytest.raises(ProgramError, match="name each one"):
        hl.program(lambda s, *rest: None)
    with pytest.raises(ProgramError, match="is called with a state"):
        hl.program(place_of)(3)  # type: ignore[arg-type]


def test_outside_of_a_program_nothing_can_be_traced() -> None:
    with pytest.raises(ProgramError, match="under @program"):
        hl.new_state()


def test_images_are_refused_by_name() -> None:
    @hl.program
    def shows(s: hl.State) -> None:
        s.user("What is this?", hl.image("cat.png"))

    with pytest.raises(ProgramError, match="no model of Headrace takes images") as found:
        shows.compile()
    assert found.value.node.startswith("test_lang_tracing.py:")
