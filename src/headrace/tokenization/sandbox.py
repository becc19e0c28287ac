"""The jinja2 environment of chat templates: jinja2's immutable sandbox with the names that templates expect.

The names are those of transformers' documentation ("Chat templates"): `raise_exception`, `strftime_now`, `tojson`, and
the tags `generation`, `break` and `continue`. The sandbox prevents a template from accessing Python. It does not limit
time and memory; the process that renders does (`render_process`).
"""

from __future__ import annotations

import datetime
import json
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

__all__ = ["TemplateRefusal", "TemplateSandbox"]


class TemplateRefusal(Exception):
    """The template called `raise_exception`."""


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """An environment for chat templates."""

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _Generation],
            cache_size=0,
            optimized=False,  # Constants are computed by the branch that needs them, not by the compiler.
        )
        self.filters["tojson"] = _to_json
        self.globals.pop("lipsum", None)
        self.globals |= {
            "namespace": _SafeNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Stop the template at once; jinja2 would continue with an undefined value."""
        raise SecurityError(f"access to attribute {attribute!r} of a {type(obj).__name__} is unsafe")


class _SafeNamespace(Namespace):
    """jinja2's `namespace` without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        for name in dict(*args[1:], **kwargs):
            _check_name(name)
        Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace may not hold {name!r}: the name begins with an underscore")


class _Generation(Extension):
    """The tag `{% generation %}`: it marks an assistant's text for training; in a prompt it is only a scope."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, without the escapes for HTML, since a prompt is not a page."""
    if isinstance(value, jinja2.Undefined):
        raise jinja2.UndefinedError("tojson of something that is not defined")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusal(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)
