"""A checkpoint's chat template: renders a conversation as the model's prompt.

A template is an untrusted program, so it is rendered in a separate process (`renderer`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import ConfigError, InvalidRequest, Overloaded, truncate
from headrace.tokenization.chat_inputs import ChatInputs
from headrace.tokenization.conversation import normalize_messages
from headrace.tokenization.local_renderer import LocalRenderer
from headrace.tokenization.quoting import Quoting
from headrace.tokenization.render_frames import REFUSAL, TEXT, Frame
from headrace.tokenization.renderer import Job, Renderer, RenderLimits, RenderStopped
from headrace.tokenization.reserved import RESERVED_TEMPLATE_ARGUMENTS
from headrace.tokenization.template_forms import PROBE_TOOLS, PROBES, TemplateForms, read_forms

__all__ = ["ChatTemplate"]

_MAX_SOURCE = 1 << 20
"""Characters of a template."""
_FAILURES = (RenderStopped, TypeError, ValueError, RecursionError, OSError)
_MARK = "\ue000the final message goes on here\ue000"


@dataclass(slots=True)
class _Talk:
    """A conversation that is being rendered."""

    inputs: ChatInputs
    template: int
    variables: dict[str, Any]
    """All variables but the messages."""
    final: str = ""
    """Text of the last message, if it is continued."""


class ChatTemplate:
    """The templates of one checkpoint. May be called from several threads."""

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str],
        limits: RenderLimits | None = None,
        quoting: Quoting | None = None,
    ) -> None:
        """`templates` by name; the usual one is `default`. Nothing is rendered or compiled yet."""
        self.source = "\n".join(templates.values())
        """The text of all of them."""
        self._names = list(templates)
        self._too_long = {name: len(text) for name, text in templates.items() if len(text) > _MAX_SOURCE}
        self._special_tokens = dict(special_tokens)
        self._quoting = quoting or Quoting((), (), "")
        sources = ["" if name in self._too_long else text for name, text in templates.items()]
        self._sources = sources
        self._renderer: Renderer | LocalRenderer = Renderer(sources, limits or RenderLimits())
        self._forms: dict[int, TemplateForms] = {}

    def check(self) -> None:
        """Raises ConfigError if a template is not valid."""
        try:
            for name in self._names:
                _text(self._render(Job(self._index(name), lambda: [None]))[0])
        except InvalidRequest as error:
            raise ConfigError(str(error)) from error

    def render_here(self) -> None:
        """Render in this process from now on, which must be one that limits itself and may be killed."""
        self._renderer = LocalRenderer(self._sources)

    def close(self) -> None:
        """End the processes that render. No render may follow."""
        if isinstance(self._renderer, Renderer):
            self._renderer.close()

    def warm(self) -> None:
        """Start the process and examine the template in the background, so that the first render doesn't wait."""
        threading.Thread(target=self._warm, name="headrace-render-warm", daemon=True).start()

    def _warm(self) -> None:
        # An error is raised again by the first render.
        with contextlib.suppress(InvalidRequest, Overloaded, RuntimeError):
            template = self._chosen(False)
            self._store_forms(template, self._render(self._probes(template)))

    def render(self, inputs: ChatInputs) -> str:
        """See `Tokenizer.apply_chat_template`."""
        talk = self._talk(inputs)
        if talk.template not in self._forms:
            self._store_forms(talk.template, self._render(self._probes(talk.template)))
        return self._finished(talk, self._render(self._job(talk)))

    async def render_async(self, inputs: ChatInputs) -> str:
        """As `render`, without blocking the event loop."""
        talk = self._talk(inputs)
        if talk.template not in self._forms:
            self._store_forms(talk.template, await self._render_async(self._probes(talk.template)))
        return self._finished(talk, await self._render_async(self._job(talk)))

    def _talk(self, inputs: ChatInputs) -> _Talk:
        return _Talk(inputs, self._chosen(bool(inputs.tools)), self._variables(inputs))

    def _job(self, talk: _Talk) -> Job:
        def renders() -> list[dict[str, Any]]:
            uniform = self._quoting.messages(normalize_messages(talk.inputs.messages, self._forms[talk.template]))
            if talk.inputs.continue_final_message:
                talk.final = _take_final(uniform)
            quoted = {name: self._quoting.value(talk.variables[name]) for name in ("tools", "documents")}
            return [talk.variables | {"messages": uniform, **quoted}]

        return Job(talk.template, renders)

    def _finished(self, talk: _Talk, frames: Sequence[Frame]) -> str:
        text = self._quoting.rendered(_text(frames[0]))
        return _with_open_end(text, talk.final) if talk.inputs.continue_final_message else text

    def _variables(self, inputs: ChatInputs) -> dict[str, Any]:
        """All variables of the template but the messages."""
        if inputs.continue_final_message and inputs.add_generation_prompt:
            message = "`continue_final_message` and `add_generation_prompt` exclude each other"
            raise InvalidRequest(message, "continue_final_message", "invalid_value")
        for name in inputs.kwargs or ():
            if name in RESERVED_TEMPLATE_ARGUMENTS or name in self._special_tokens or name.endswith("_token"):
                param = f"chat_template_kwargs.{name}"
                raise InvalidRequest(f"`{param}` may not be set: it is reserved", param, "invalid_value")
        return {
            **self._special_tokens,
            **(inputs.kwargs or {}),
            "tools": list(inputs.tools) if inputs.tools else None,
            "documents": list(inputs.documents) if inputs.documents else None,
            "add_generation_prompt": inputs.add_generation_prompt,
        }

    def _chosen(self, with_tools: bool) -> int:
        for name in ("tool_use", "default") if with_tools else ("default",):
            if name in self._names:
                return self._index(name)
        raise _fault(f"the checkpoint has templates named {', '.join(sorted(self._names))} and none for this use")

    def _index(self, name: str) -> int:
        if name in self._too_long:
            raise _fault(f"it has {self._too_long[name]} characters: at most {_MAX_SOURCE} are allowed")
        return self._names.index(name)

    def _probes(self, index: int) -> Job:
        variables = self._variables(ChatInputs((), PROBE_TOOLS, add_generation_prompt=False))
        return Job(index, lambda: [variables | {"messages": messages} for messages in PROBES.values()])

    def _store_forms(self, template: int, frames: Sequence[Frame]) -> None:
        """Store the forms that the probes show. Raises InvalidRequest if the process ended before the last probe."""
        kind, ended, _ = frames[-1]
        if ended and kind != TEXT:
            _text(frames[-1])
        texts = [content.decode("utf-8", "surrogatepass") if kind == TEXT else None for kind, _, content in frames]
        self._forms[template] = read_forms(dict(zip(PROBES, texts, strict=True)))

    def _render(self, job: Job) -> list[Frame]:
        try:
            return self._renderer.render(job)
        except _FAILURES as error:
            raise _explained(error) from error

    async def _render_async(self, job: Job) -> list[Frame]:
        try:
            return await self._renderer.render_async(job)
        except _FAILURES as error:
            raise _explained(error) from error


def _text(frame: Frame) -> str:
    kind, _, content = frame
    text = content.decode("utf-8", "surrogatepass")
    if kind == REFUSAL:
        raise InvalidRequest(f"the chat template refuses these messages: {truncate(text)}", "messages", "invalid_value")
    if kind != TEXT:
        raise _fault(text)
    return text


def _take_final(messages: list[dict[str, Any]]) -> str:
    """The text of the last message, or of its last part; a mark replaces it in the message."""
    last = messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        message = "`continue_final_message` needs an assistant's message without tool calls at the end"
        raise InvalidRequest(message, "continue_final_message", "invalid_value")
    content: str | list[dict[str, str]] = last["content"]
    if isinstance(content, str):
        last["content"] = _MARK
        return content
    *before, final = content or [{"type": "text", "text": ""}]
    last["content"] = [*before, {"type": "text", "text": _MARK}]
    return final["text"]


def _with_open_end(text: str, final: str) -> str:
    """Cut the text at the mark and append the last message's text unchanged: templates trim it, and close a message."""
    at = text.rfind(_MARK)
    if at < 0:
        raise InvalidRequest(
            "`continue_final_message`: the chat template does not show the last message's content",
            "continue_final_message",
            "invalid_value",
        )
    return text[:at] + final


def _explained(error: Exception) -> Exception:
    if isinstance(error, RenderStopped):
        return _fault(str(error))
    if isinstance(error, OSError):
        return Overloaded(f"no process can be started to render the chat template: {error.strerror or error}")
    return InvalidRequest(f"the messages are not plain JSON: {truncate(str(error))}", "messages", "invalid_value")


def _fault(why: str) -> InvalidRequest:
    return InvalidRequest(f"the chat template failed: {truncate(why)}", "messages", "chat_template_error")
