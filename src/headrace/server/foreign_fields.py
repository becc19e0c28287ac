"""Fields of OpenAI's API and of other servers that are refused, with what to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["FOREIGN_FIELDS"]

_STRUCTURED = "use `structured_outputs`, with `{}`"

FOREIGN_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "audio": "answers are text",
        "custom_params": "there are no parameters of plugins",
        "ebnf": _STRUCTURED.format("grammar"),
        "function_call": "use `tool_choice`",
        "functions": "use `tools`",
        "guided_choice": _STRUCTURED.format("choice"),
        "guided_decoding_backend": "the server's option `--grammar-backend` chooses it",
        "guided_grammar": _STRUCTURED.format("grammar"),
        "guided_json": _STRUCTURED.format("json"),
        "guided_regex": _STRUCTURED.format("regex"),
        "guided_whitespace_pattern": _STRUCTURED.format("whitespace"),
        "length_penalty": "there is no beam search",
        "logprob": "use `logprobs`",
        "moderation": "answers are not moderated",
        "no_stop_trim": "use `include_stop_str_in_output`",
        "regex": _STRUCTURED.format("regex"),
        "request_id": "send the header `x-request-id`, which comes back",
        "return_tokens_as_token_ids": "use `return_token_ids`",
        "separate_reasoning": "reasoning is separate, unless the server runs with `--reasoning-format none`",
        "spaces_between_special_tokens": "special tokens are written as the tokenizer writes them",
        "stop_regex": "`stop` takes texts",
        "stream_reasoning": "reasoning is streamed as the rest; `include_reasoning` false leaves it out",
        "thinking": "use `reasoning_effort`, or the template's own `chat_template_kwargs`",
        "thinking_token_budget": "use `reasoning_effort`, or `max_completion_tokens`, which counts reasoning, too",
        "use_beam_search": "there is no beam search",
        "vllm_xargs": "there are no parameters of plugins",
        "web_search_options": "the server does not search the web",
    }
)
