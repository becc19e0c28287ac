"""jinja2's immutable sandbox with limits on time and room.

A template comes with a checkpoint from anywhere. jinja2's sandbox keeps it from reaching Python; what it doesn't limit is
work. So every turn of a loop and every call ticks, each tick looks at the thread's CPU time, whatever can make something
large in one operation says how large before it does, and filters and methods that exist to make text large are left out.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["Budget", "TemplateLimit", "TemplateRefusal", "TemplateSandbox"]

_MAX_TEXT = 1 << 23
"""Characters of one text."""
_MAX_MADE = 1 << 27
"""Characters made in one render, intermediate ones included; an item of a list counts as eight."""
_MAX_ITEMS = 1 << 20
_MAX_BITS = 1 << 12
"""Of an integer."""
_FILTERS = (
    "abs attr batch capitalize count d default dictsort e escape first float forceescape groupby int items join last length "
    "list lower map max min reject rejectattr replace reverse round safe select selectattr slice sort string striptags sum "
    "title trim truncate unique upper wordcount"
).split()
_WIDE_PERCENT = re.compile(r"%(\([^)]*\))?[-+ #0-9.]*(\*|\d{4})")
_WIDE_FORMAT = re.compile(r"\{[^{}]*(\d{4}|:[^{}]*\{)")
_NO_METHODS = frozenset("center ljust rjust zfill expandtabs translate maketrans encode".split())


class TemplateLimit(Exception):
    """More time or room than a template may use."""


class TemplateRefusal(Exception):
    """The template called `raise_exception`."""


class Budget:
    """What one render may still use; `seconds` are of this thread's CPU time."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.thread_time() + seconds
        self._seconds = seconds
        self._left = _MAX_MADE
        self._ticks = 0

    def tick(self) -> None:
        self._ticks += 1
        if not self._ticks & 15 and time.thread_time() > self._deadline:
            raise TemplateLimit(f"it was stopped after {self._seconds:g} s of computing")

    def reserve(self, characters: int) -> None:
        """Before making a text."""
        if characters > _MAX_TEXT or characters > max(0, self._left):
            raise TemplateLimit(f"it makes more text than the {_MAX_TEXT} characters that are allowed")
        self._left -= characters
        self.tick()

    def made(self, value: Any) -> None:
        """After making a value."""
        if isinstance(value, str):
            self.reserve(len(value))
        elif isinstance(value, (list, tuple, dict)):
            self._left -= 8 * len(value)
            self.reserve(0)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """An environment for chat templates. Use `limited` around compiling and rendering; both work in one thread."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _Generation],
            cache_size=0,
            optimized=False,
        )
        self._thread = threading.local()
        self.filters = {name: self._ticking(self.filters[name]) for name in _FILTERS}
        self.filters |= {name: self._guarded(name) for name in ("join", "replace", "batch", "slice")}
        self.filters |= {"indent": self._indent, "tojson": self._to_json}
        functions = {name: self.globals[name] for name in ("range", "dict", "namespace", "cycler", "joiner")}
        self.globals = functions | {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    @property
    def budget(self) -> Budget:
        budget: Budget = self._thread.budget
        return budget

    @contextlib.contextmanager
    def limited(self, budget: Budget) -> Iterator[Budget]:
        """What this thread compiles and renders within draws on the budget."""
        self._thread.budget = budget
        try:
            yield budget
        finally:
            del self._thread.budget

    # What compiled templates call.

    def looped(self, items: Iterable[Any]) -> Iterator[Any]:
        """Each turn of a loop ticks."""
        for item in items:
            self.budget.tick()
            yield item

    def joined(self, parts: Sequence[Any]) -> str:
        """The operator `~`."""
        return self.concat(str(part) for part in parts)

    def concat(self, parts: Iterable[str]) -> str:
        """What blocks and macros put out, in one text."""
        held = list(parts)
        self.budget.reserve(sum(map(len, held)))
        return "".join(held)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.budget.tick()
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            self._reserve_method(obj.__name__, owner, args)
        elif isinstance(obj, LoopContext) and args:
            args = (self.looped(args[0]), *args[1:])
        result = super().call(context, obj, *args, **kwargs)
        self.budget.made(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self._reserve_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return super().is_safe_attribute(obj, attr, value) and not (isinstance(obj, str) and attr in _NO_METHODS)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """jinja2 would go on with nothing until it is used; who reaches for such a thing is stopped at once."""
        raise SecurityError(f"access to attribute {attribute!r} of a {type(obj).__name__} is unsafe")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        pattern, inner = str(value.__self__), wrapped
        _check_widths(_WIDE_FORMAT, pattern)

        def limited(*args: Any, **kwargs: Any) -> str:
            self._reserve_fields(len(pattern), pattern.count("{"), [*args, *kwargs.values()])
            return inner(*args, **kwargs)

        return limited

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = _call_environment("looped", loop.iter)
        for node in list(tree.find_all(nodes.Node)):
            _replace_concats(node)
        return tree

    # Sizes before the fact.

    def _reserve_operator(self, operator: str, left: Any, right: Any) -> None:
        sizes = [len(side) if isinstance(side, (str, list, tuple)) else None for side in (left, right)]
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (right if operator == "**" else 1) + (
                right.bit_length() if operator == "*" else 0
            )
            if bits > _MAX_BITS:
                raise TemplateLimit(f"it computes a number of more than {_MAX_BITS} bits")
        elif operator == "%" and isinstance(left, str):
            _check_widths(_WIDE_PERCENT, left)
            values = right.values() if isinstance(right, dict) else right if isinstance(right, tuple) else (right,)
            self._reserve_fields(len(left), left.count("%"), values)
        elif operator == "+" and None not in sizes:
            self._reserve_sequence(left, sum(size or 0 for size in sizes))
        elif operator == "*" and sizes != [None, None]:
            sequence, size, times = (left, sizes[0], right) if sizes[0] is not None else (right, sizes[1], left)
            self._reserve_sequence(sequence, (size or 0) * max(0, times if isinstance(times, int) else 0))
        self.budget.tick()

    def _reserve_fields(self, fixed: int, fields: int, values: Iterable[Any]) -> None:
        """Before formatting: each field may show the longest value, and has up to 999 characters of width."""
        longest = max((len(str(value)) for value in values), default=0)
        self.budget.reserve(fixed + fields * max(longest, 64))

    def _reserve_sequence(self, like: Any, size: int) -> None:
        if isinstance(like, str):
            self.budget.reserve(size)
        elif size > _MAX_ITEMS:
            raise TemplateLimit(f"it makes a list of {size} items: at most {_MAX_ITEMS} are allowed")

    def _reserve_method(self, name: str, owner: str, args: Sequence[Any]) -> None:
        if name == "replace" and len(args) > 1 and all(isinstance(arg, str) for arg in args[:2]):
            self.budget.reserve(len(owner) + owner.count(args[0]) * len(args[1]))
        elif name == "join" and args and isinstance(args[0], (list, tuple)):
            self.budget.reserve(len(owner) * len(args[0]) + sum(len(part) for part in args[0] if isinstance(part, str)))
        elif name in ("format", "join"):
            self.budget.reserve(len(owner))

    # Filters.

    def _ticking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def ticking(*args: Any, **kwargs: Any) -> Any:
            self.budget.tick()
            result = function(*args, **kwargs)
            self.budget.made(result)
            return result

        # jinja2 marks filters that want the context or the environment by attributes.
        ticking.__dict__.update(getattr(function, "__dict__", {}))
        return ticking

    def _guarded(self, name: str) -> Callable[..., Any]:
        inner = self.filters[name]
        skip = 1 if hasattr(inner, "jinja_pass_arg") else 0

        def guarded(*args: Any, **kwargs: Any) -> Any:
            values = [*args[skip:], *kwargs.values()]
            if any(isinstance(value, int) and abs(value) > _MAX_ITEMS for value in values):
                raise TemplateLimit(f"filter {name!r} gets a number above {_MAX_ITEMS}")
            if name == "replace":
                self._reserve_method("replace", str(values[0]), [str(value) for value in values[1:3]])
            elif name == "join":
                items = [str(item) for item in self.looped(values[0])] if "attribute" not in kwargs else []
                separator = str(values[1]) if len(values) > 1 else ""
                self.budget.reserve(sum(map(len, items)) + len(separator) * len(items))
                if items:
                    args = (*args[:skip], items, *args[skip + 1 :])
            return inner(*args, **kwargs)

        guarded.__dict__.update(inner.__dict__)
        return guarded

    def _indent(self, text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        text = str(text)
        pad = width if isinstance(width, str) else " " * min(max(0, width), 1000)
        lines = text.splitlines(keepends=True)
        self.budget.reserve(len(text) + len(pad) * len(lines))
        return "".join(
            pad + line if (first or i) and (blank or line.strip("\r\n")) else line for i, line in enumerate(lines)
        )

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Plain JSON: a prompt is no HTML page, so nothing is escaped for one."""
        if isinstance(indent, int) and indent > 16:
            raise TemplateLimit(f"tojson with an indent of {indent}: at most 16 is allowed")
        if isinstance(value, jinja2.Undefined):
            raise jinja2.UndefinedError("tojson of something that is not defined")
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        self.budget.made(text)
        return text


class _Generation(Extension):
    """`{% generation %}` marks an assistant's text for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _call_environment(name: str, argument: nodes.Node) -> nodes.Call:
    line = argument.lineno
    function = nodes.EnvironmentAttribute(name, lineno=line)
    return nodes.Call(function, [argument], [], None, None, lineno=line)


def _replace_concats(node: nodes.Node) -> None:
    for field, value in node.iter_fields():
        if isinstance(value, nodes.Concat):
            setattr(node, field, _concat_call(value))
        elif isinstance(value, list):
            value[:] = [_concat_call(item) if isinstance(item, nodes.Concat) else item for item in value]


def _concat_call(node: nodes.Concat) -> nodes.Call:
    return _call_environment("joined", nodes.List(node.nodes, lineno=node.lineno))


def _check_widths(wide: re.Pattern[str], text: str) -> None:
    """A format's width makes text: three digits are plenty."""
    if wide.search(text):
        raise TemplateLimit("it formats with a width that is too large or not written out")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusal(message)


def _strftime_now(pattern: str) -> str:
    if len(pattern) > 200 or re.search(r"\d{3}", pattern):
        raise TemplateLimit("strftime_now with a pattern that is too long")
    return datetime.datetime.now().strftime(pattern)
