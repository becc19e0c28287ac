"""Programs of several generations: a function over a state is traced into a plan, which is data, and run on a model.

from headrace import lang as hl

@hl.program
def capital(s, country: str):
    s.user("What is the capital of ", country, "?")
    s.assistant(hl.gen("answer", max_tokens=32))

print(capital.run("France", on="http://127.0.0.1:8000")["answer"])
"""

from __future__ import annotations

from typing import Any

from headrace.lang.calls import call, image, join, list_of, mode, new_state, require
from headrace.lang.check import CheckReport, Problem, check
from headrace.lang.control import else_, for_, if_, while_
from headrace.lang.forks import Branch, fork
from headrace.lang.plan import Plan, decode_plan, encode_plan, plan_id, plan_schema
from headrace.lang.plan_graph import plan_graph
from headrace.lang.priority import prioritised
from headrace.lang.program import Program, Static, out, program
from headrace.lang.running import LoadedPlan, RunEvent, RunResult, load_plan
from headrace.lang.server_source import Server, server
from headrace.lang.state import GenPart, MessagePart, SelectPart, State, gen_part, message_part, select_part
from headrace.lang.values import Value

__all__ = [
    "Branch",
    "CheckReport",
    "GenPart",
    "LoadedPlan",
    "MessagePart",
    "Plan",
    "Problem",
    "Program",
    "RunEvent",
    "RunResult",
    "SelectPart",
    "Server",
    "State",
    "Static",
    "Value",
    "assistant",
    "call",
    "check",
    "decode_plan",
    "else_",
    "encode_plan",
    "for_",
    "fork",
    "gen",
    "if_",
    "image",
    "join",
    "list_of",
    "load_plan",
    "mode",
    "new_state",
    "out",
    "plan_graph",
    "plan_id",
    "plan_schema",
    "prioritised",
    "program",
    "require",
    "select",
    "server",
    "system",
    "user",
    "while_",
]

gen = gen_part
select = select_part


def system(*parts: Any) -> MessagePart:
    """A system message, for `s += hl.system(…)`."""
    return message_part("system", parts)


def user(*parts: Any) -> MessagePart:
    """A user's message, for `s += hl.user(…)`."""
    return message_part("user", parts)


def assistant(*parts: Any) -> MessagePart:
    """The model's message, for `s += hl.assistant(…)`."""
    return message_part("assistant", parts)
