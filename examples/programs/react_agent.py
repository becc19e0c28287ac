"""An agent with tools (ReAct, arXiv:2210.03629): think, choose an action, see what it gives, until it can answer.

    headrace program run examples/programs/react_agent.py question="How many days have 7 weeks?" \
        --url http://127.0.0.1:8000
"""

from __future__ import annotations

import ast
import operator

from headrace import lang as hl

FACTS = {"days in a week": "7", "hours in a day": "24"}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def act(action: str, argument: str) -> str:
    """The tools. A plan has only the function's name: it is called where the plan is run."""
    if action == "look up":
        return FACTS.get(argument.strip().lower(), "not found")
    try:
        return str(_value(ast.parse(argument.strip(), mode="eval").body))
    except (SyntaxError, ValueError):
        return "no expression of numbers"


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return int(OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
    raise ValueError("only + - * of whole numbers")


@hl.program(max_tokens=1500)
def agent(s: hl.State, question: str) -> None:
    s.text("Answer the question. Actions: look up, calculate, finish.\n\nQuestion: ", question, "\n")
    s["action"] = ""
    with hl.while_(lambda: s["action"] != "finish", max=6):
        s.text("Thought:")
        s.gen("thought", max_tokens=40, stop="\n", temperature=0)
        s.text("\nAction: ")
        s.select("action", ["look up", "calculate", "finish"])
        s.text("\nInput: ")
        argument = s.gen("input", max_tokens=20, stop="\n", temperature=0)
        s["answer"] = argument
        with hl.if_(s["action"] != "finish"):
            s.text("\nObservation: ", hl.call(act, s["action"], argument, timeout=10), "\n")
