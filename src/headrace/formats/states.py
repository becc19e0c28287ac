"""The parts of a format's table: states, the markers that lead from one to another, and the form of a forced call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from headrace.formats.reader import Reader
from headrace.formats.values import Schemas

__all__ = ["CallForm", "Move", "Part", "ReaderFactory", "ReasoningFormat", "Role", "State", "Target", "ToolFormat"]

Role = Literal["start", "content", "reasoning", "header", "name", "id", "arguments", "skip", "reader"]
"""The meaning of text in a state. `start`: content that has not begun; `header`: text that a target function reads;
`name`, `id`: those of a call; `skip`: between markers, where other text than blanks is content again."""

ReaderFactory = Callable[[Schemas], Reader]


@dataclass(frozen=True, slots=True)
class Target:
    """The next state, with the name of a call if the header held one."""

    state: str
    name: str = ""


Move = str | Callable[[str], Target]
"""The next state's name, or a function of the header's raw text."""


@dataclass(frozen=True, slots=True)
class State:
    role: Role
    moves: Mapping[str, Move] = field(default_factory=dict)
    """By marker."""
    chars: Mapping[str, str] = field(default_factory=dict)
    """By the first character that is not blank; "" is any other letter."""
    ignored: str = ""
    """Characters beside blanks that have no meaning here."""
    reader: ReaderFactory | None = None
    then: str = "start"
    """The state after the reader has ended. A special token that leads on from there ends the reader, except within a
    string."""


Part = str
"""Text of a forced call. The constants of `CallForm` stand for what changes from call to call."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """How the model writes calls, for the grammar that forces one. Markers in the texts become special tokens if the
    vocabulary has them."""

    call: tuple[Part, ...]
    begin: str = ""
    """Before the first call."""
    between: str = ""
    end: str = ""
    """After the last call."""
    trigger: str = ""
    """The beginning of a call by which one is told from content; default: the beginning of `begin` or `call`."""

    NAME = "\0name"
    ARGUMENTS = "\0arguments"
    """The arguments as one JSON object."""
    PARAMETERS = "\0parameters"
    """The parameters one by one, each in the form of `parameter`."""
    ID9 = "\0id"
    """Nine letters and digits."""
    INDEX = "\0index"
    """A small number."""
    parameter: tuple[Part, ...] = ()
    KEY = "\0key"
    TYPE = "\0type"
    """The word of `types` for the value's type."""
    VALUE = "\0value"
    """A string as it is, up to the text that follows; anything else as JSON, unless there is `item`."""
    separator: str = ""
    """Between two parameters."""
    json_values: bool = False
    """Strings are JSON strings too."""
    types: Mapping[str, str] = field(default_factory=dict)
    """By JSON type."""
    item: tuple[Part, ...] = ()
    """An item of a list. Then lists are written so, and objects as their members in the form of `parameter`, both with
    `separator` between two."""
    member: tuple[Part, ...] = ()
    """A member of an object within a value; default: `parameter`."""
    constants: Mapping[str, str] = field(default_factory=dict)
    """Words for JSON's true, false and null."""
    quotes: tuple[str, str] = ("", "")
    """Around a string."""
    brackets: tuple[str, str, str, str] = ("", "", "", "")
    """Around an object, and around a list."""
    escaped: str = ""
    """Characters of a key that are written as XML entities."""
    preludes: tuple[tuple[Part, ...], ...] = ()
    """One of them may stand before a call."""
    answer: tuple[Part, ...] = ()
    """Stands in place of a call."""
    FREE = "\0free"
    """Any text."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models writes tool calls."""

    name: str
    opens: Mapping[str, Move]
    """Markers that begin a call in content; in reasoning they end it."""
    states: Mapping[str, State]
    start_chars: Mapping[str, str] = field(default_factory=dict)
    """First characters of an answer that may begin a call."""
    call_id: Callable[[str], tuple[str, str | None]] | None = None
    """(name, id) of what stands at a call's name."""
    form: CallForm | None = None
    """None: calls cannot be forced."""
    inline: frozenset[str] = frozenset()
    """Special tokens within arguments, and those that are parts of markers."""
    dropped: frozenset[str] = frozenset()
    """Markers around content, which are not part of it."""
    short_ids: bool = False
    """Ids of calls are nine letters and digits; longer ones cannot be sent back."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a family of models marks its reasoning."""

    name: str
    opens: Mapping[str, Move]
    closes: frozenset[str]
    states: Mapping[str, State] = field(default_factory=dict)
    start_only: bool = False
    """The markers are plain phrases, which count only at the beginning of an answer."""
    prompt_opens: tuple[str, ...] = ()
    """Ends of a prompt after which the answer begins with reasoning."""
    inline: frozenset[str] = frozenset()
    """Special tokens that are parts of markers."""
    dropped: frozenset[str] = frozenset()
    """Markers around content, which are not part of it. They end reasoning, too."""
    last_token: str = ""
    """The special token with which the markers in `closes` end, if they are several tokens."""
    complete: Mapping[str, State] | None = None
    """The complete table, for a format in which reasoning, content and calls are messages alike."""
