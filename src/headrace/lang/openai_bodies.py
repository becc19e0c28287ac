"""Bodies of requests to servers with OpenAI's API, by what each kind of server takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import ProgramError
from headrace.lang.conversation import Conversation

__all__ = ["KINDS", "ServerKind", "generation_body"]

_OPENAI_FIELDS = frozenset(
    "max_tokens temperature top_p presence_penalty frequency_penalty logit_bias seed stop logprobs".split()
)


@dataclass(frozen=True, slots=True)
class ServerKind:
    name: str
    continues: bool = False
    """`continue_final_message`: text after text of the assistant's message."""
    constraints: bool = False
    """The field `structured_outputs`."""
    all_sampling: bool = False
    """Sampling parameters beyond OpenAI's."""
    tokenizes: bool = False
    """`/tokenize` of texts and messages, and prompts of token ids."""
    scores_alone: bool = False
    """`max_tokens: 0` with `echo`."""
    whitespace: bool = False
    """The field `whitespace` of a constraint."""
    scores_from: bool = False
    """The field `prompt_logprobs_start`."""
    plans: bool = False
    """Maybe `/v1/programs`."""
    priorities: bool = False
    """The field `priority`: the lowest runs first."""


KINDS: Mapping[str, ServerKind] = {
    kind.name: kind
    for kind in (
        ServerKind("headrace", True, True, True, True, True, True, True, True, True),
        ServerKind("vllm", True, True, True, True, priorities=True),
        ServerKind("openai"),
    )
}
"""Kinds by name, which is also the owner that the server's list of models names; all others are `openai`."""


def generation_body(
    kind: ServerKind, conversation: Conversation, sampling: Mapping[str, Any], constraint: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any]]:
    """Path and body of a request, without the model. Raises ProgramError for what this kind of server cannot do."""
    body = _sampling(kind, sampling, conversation.is_chat)
    if not conversation.is_chat:
        return "/v1/completions", {"prompt": conversation.text, **body, **_constraint(kind, constraint, False)}
    body |= _constraint(kind, constraint, True)
    if conversation.text:
        if not kind.continues:
            raise ProgramError(
                "this server cannot go on with a text that the assistant's message has begun: let the generation be "
                "the whole message, or use a server that takes `continue_final_message` (Headrace, vLLM)"
            )
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    return "/v1/chat/completions", {"messages": conversation.as_messages(), **body}


def _sampling(kind: ServerKind, sampling: Mapping[str, Any], chat: bool) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for name, value in sampling.items():
        if name not in _OPENAI_FIELDS and not kind.all_sampling:
            raise ProgramError(f"this server takes no `{name}`, which is beyond OpenAI's API")
        if name == "logit_bias":
            body[name] = {str(token): bias for token, bias in value}
        elif name == "logprobs" and chat:
            body |= {} if value is None else {"logprobs": True, "top_logprobs": value}
        elif value is not None:
            body[name] = value
    return body


def _constraint(kind: ServerKind, constraint: Mapping[str, Any] | None, chat: bool) -> dict[str, Any]:
    if constraint is None:
        return {}
    given = dict(constraint)
    if given.pop("strict", False):
        raise ProgramError("`strict` is for an engine in this process: leave it out")
    if "whitespace" in given and not kind.whitespace:
        raise ProgramError("this server takes no `whitespace` of a constraint: leave it out")
    if kind.constraints:
        return {"structured_outputs": given}
    (name,) = given
    if chat and name == "json":
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": given["json"]}}}
    if chat and name == "json_object":
        return {"response_format": {"type": "json_object"}}
    where = "" if chat else " in a text without roles"
    raise ProgramError(
        f"this server cannot enforce the constraint `{name}`{where}: it takes JSON schemas in chats alone; "
        "Headrace and vLLM take all constraints"
    )
