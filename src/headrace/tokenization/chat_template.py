"""A checkpoint's chat template, rendered in a sandbox.

The names that templates expect beside jinja2's own are those of transformers' documentation ("Chat templates"): `messages`,
`tools`, `documents`, `add_generation_prompt`, the special tokens, `raise_exception`, `strftime_now`, `tojson`, and the tags
`generation`, `break` and `continue`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from headrace.errors import ConfigError, InvalidRequest
from headrace.tokenization.conversation import normalize_messages
from headrace.tokenization.reserved import RESERVED_TEMPLATE_ARGUMENTS
from headrace.tokenization.sandbox import Budget, TemplateLimit, TemplateRefusal, TemplateSandbox

__all__ = ["ChatTemplate"]

_MAX_SOURCE = 1 << 20
"""Characters of a template."""
_MARK = "\ue000the final message goes on here\ue000"


class ChatTemplate:
    """The templates of one checkpoint. May be called from several threads; a render blocks its own alone."""

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str], seconds: float = 1.0) -> None:
        """`templates` by name, `default` the usual one; `seconds` of CPU time are what a render may use."""
        self._sources = dict(templates)
        self._special_tokens = dict(special_tokens)
        self._seconds = seconds
        self._sandbox = TemplateSandbox()
        self._compiled: dict[str, jinja2.Template] = {}
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raises ConfigError where a template is no valid one."""
        try:
            for source in self._sources.values():
                self._compile(source)
        except InvalidRequest as error:
            raise ConfigError(str(error)) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """See `Tokenizer.apply_chat_template`."""
        if continue_final_message and add_generation_prompt:
            message = "`continue_final_message` and `add_generation_prompt` exclude each other"
            raise InvalidRequest(message, "continue_final_message", "invalid_value")
        variables = self._special_tokens | self._checked(kwargs or {})
        uniform = normalize_messages(messages)
        final = _take_final(uniform) if continue_final_message else None
        variables |= {
            "messages": uniform,
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._run(self._source(bool(tools)), variables)
        return text if final is None else _open_end(text, final)

    def _checked(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        for name in kwargs:
            if name in RESERVED_TEMPLATE_ARGUMENTS or name in self._special_tokens or name.endswith("_token"):
                param = f"chat_template_kwargs.{name}"
                raise InvalidRequest(f"`{param}` may not be set: it has a meaning of its own", param, "invalid_value")
        return dict(kwargs)

    def _source(self, with_tools: bool) -> str:
        source = self._sources.get("tool_use") if with_tools else None
        source = source or self._sources.get("default")
        if source is None:
            names = ", ".join(sorted(self._sources))
            raise _fault(f"the checkpoint has templates named {names} and none for this use")
        return source

    def _run(self, source: str, variables: Mapping[str, Any]) -> str:
        try:
            template = self._compile(source)
            with self._sandbox.limited(Budget(self._seconds)) as budget:
                parts: list[str] = []
                for part in template.generate(variables):
                    budget.made(part)
                    parts.append(part)
                return "".join(parts)
        except TemplateRefusal as error:
            raise InvalidRequest(
                f"the chat template refuses these messages: {error}", "messages", "invalid_value"
            ) from error
        except (jinja2.TemplateError, TemplateLimit) as error:
            raise _fault(str(error)) from error
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise _fault(f"{type(error).__name__}: {error}") from error
        except (RecursionError, MemoryError) as error:
            raise _fault("it nests too deeply or needs too much memory") from error

    def _compile(self, source: str) -> jinja2.Template:
        with self._lock:
            if source not in self._compiled:
                self._compiled[source] = self._new(source)
            return self._compiled[source]

    def _new(self, source: str) -> jinja2.Template:
        if len(source) > _MAX_SOURCE:
            raise _fault(f"it has {len(source)} characters: at most {_MAX_SOURCE} are allowed")
        try:
            # Constant expressions are evaluated while compiling: they are under the same limits.
            with self._sandbox.limited(Budget(self._seconds)):
                return self._sandbox.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise _fault(f"line {error.lineno}: {error.message}") from error
        except (jinja2.TemplateError, TemplateLimit) as error:
            raise _fault(str(error)) from error
        except (RecursionError, MemoryError, SyntaxError, ValueError, OverflowError) as error:
            raise _fault(f"it cannot be compiled: {type(error).__name__}") from error


def _take_final(messages: list[dict[str, Any]]) -> str:
    """The last message's text, with a mark left in its place."""
    last = messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        message = "`continue_final_message` needs an assistant's message without tool calls at the end"
        raise InvalidRequest(message, "continue_final_message", "invalid_value")
    final: str = last["content"]
    last["content"] = _MARK
    return final


def _open_end(text: str, final: str) -> str:
    """Templates trim, and close a message: so cut at the mark, and put the text there as it was."""
    at = text.rfind(_MARK)
    if at < 0:
        raise InvalidRequest(
            "`continue_final_message`: the chat template does not show the last message's content",
            "continue_final_message",
            "invalid_value",
        )
    return text[:at] + final


def _fault(why: str) -> InvalidRequest:
    return InvalidRequest(f"the chat template failed: {why}", "messages", "chat_template_error")
