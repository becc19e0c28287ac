"""Structural tags: free text in which tags with a fixed beginning, a constrained content and a fixed end may stand.

The two forms that clients send (vLLM's and xgrammar's) become Lark text for llguidance. It refers to the schemas by the
rules `schema_0`, `schema_1`…, which whoever compiles it adds.

The text `TEXT "<f"` in a lazy rule ends at the first `<f`, so that free text never runs over a trigger, and neither
does a text run over the end of its tag. A control token may stand wherever its text is written: `("<t>" | <[7]>)`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import llguidance

from headrace.errors import InvalidRequest, excerpt
from headrace.grammar.places import PlacedSchema
from headrace.grammar.tag_formats import MOST_PARTS, Node, Part, TagError, parts_of

__all__ = ["TagGrammar", "tag_grammar"]


@dataclass(frozen=True, slots=True)
class TagGrammar:
    lark: str
    schemas: list[PlacedSchema]
    """Those of `schema_0` and so on, with their places in the tag."""
    closed: bool
    """A fixed text stands behind each regular expression, and ends it."""


def tag_grammar(text: str, special: Mapping[str, int], ends: Collection[int]) -> TagGrammar:
    """`text`: the JSON text of the tag. `special`: the ids of control tokens by their text. `ends`: end tokens.

    Raises InvalidRequest, with the place, for a wrong shape and for what cannot be enforced."""
    builder = _Builder(special, ends)
    try:
        start = builder.expression(parts_of(text), final=True)
    except TagError as error:
        raise InvalidRequest(f"the structural tag {error}", "response_format", "invalid_constraint") from None
    except RecursionError:
        message = "the structural tag is nested too deeply"
        raise InvalidRequest(message, "response_format", "invalid_constraint") from None
    lark = "\n".join([f"start: {start}", *builder.rules, r"TEXT: /(.|\n)*/", ""])
    return TagGrammar(lark, builder.schemas, builder.closed)


@dataclass
class _Builder:
    special: Mapping[str, int]
    ends: Collection[int]
    rules: list[str] = field(default_factory=list)
    schemas: list[PlacedSchema] = field(default_factory=list)
    parts: int = 0
    closed: bool = True

    def __post_init__(self) -> None:
        names = sorted(self.special, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else None
        self._until: dict[tuple[str, str], str] = {}

    def expression(self, parts: list[Part], final: bool) -> str:
        """Lark for the parts, one after the other. `final`: the text ends behind them."""
        found: list[str] = []
        at = 0
        while at < len(parts):
            part, at = parts[at], at + 1
            if isinstance(part, str):
                found.append(self.text(part))
                continue
            # The fixed text behind a part is where it ends.
            literal = ""
            while at < len(parts) and isinstance(following := parts[at], str):
                literal, at = literal + following, at + 1
            found.append(self._node(part, literal, final and at == len(parts)))
        return " ".join(piece for piece in found if piece) or '""'

    def _node(self, node: Node, literal: str, final: bool) -> str:
        """Lark for a part with the fixed text behind it."""
        self.parts += 1
        if self.parts > MOST_PARTS:
            raise TagError(f"has more than {MOST_PARTS} parts, counted once for each end that they may have")
        match node.kind:
            case "json_schema":
                self.schemas.append(PlacedSchema(f"{node.where}.{node.name}", node.given[node.name]))
                return f"schema_{len(self.schemas) - 1} {self.text(literal)}".rstrip()
            case "regex":
                pattern = f"/{llguidance.regex_to_lark(node.given['pattern'])}/"
                self.closed = self.closed and bool(literal)
                return self._ended(pattern, literal) if literal else pattern
            case "any_text":
                return self._free(node, literal, final)
            case "or":
                return self._one_of([[*parts, literal] for parts in node.choices], final)
            case "tags_with_separator":
                return self._separated(node, literal)
        return self._triggered(node, literal, final)

    def text(self, text: str) -> str:
        """Fixed text, in which control tokens may stand for themselves."""
        pieces = self._split.split(text) if self._split else [text]
        return " ".join(f"({_quoted(p)} | {self._token(p)})" if p in self.special else _quoted(p) for p in pieces if p)

    def _token(self, text: str) -> str:
        found = self.special[text]
        if found in self.ends:
            raise TagError(f"holds {excerpt(text)}, which ends the output: leave it out")
        return f"<[{found}]>"

    def _ended(self, text: str, literal: str) -> str:
        """`text`, which ends at the first occurrence of the literal."""
        name = self._until.get((text, literal))
        if name is None:
            name = self._until[text, literal] = f"until_{len(self.rules)}"
            self.rules.append(f"{name}[lazy]: {text} {_quoted(literal)}")
        first = self._split.match(literal) if self._split else None
        if first is None:
            # A control token further behind is only recognized by its text.
            return name
        rest = self.text(literal[first.end() :])
        return f"({name} | {text} {self._token(first[0])} {rest})".replace(" )", ")")

    def _free(self, node: Node, literal: str, final: bool) -> str:
        if literal:
            return self._ended("TEXT", literal)
        if not final:
            raise TagError(f"at `{node.where}`: free text needs a fixed text behind it, where it ends")
        return "TEXT"

    def _one_of(self, choices: list[list[Part]], final: bool) -> str:
        return f"({' | '.join(self.expression(parts, final) for parts in choices)})"

    def _separated(self, node: Node, literal: str) -> str:
        tags = self._rule(self._one_of(node.choices, final=False))
        more = "" if node.given.get("stop_after_first") else f"({self.text(node.given['separator'])} {tags})*"
        found = f"{tags} {more}".rstrip()
        return f"{found if node.given.get('at_least_one') else f'({found})?'} {self.text(literal)}".rstrip()

    def _triggered(self, node: Node, literal: str, final: bool) -> str:
        """Free text with tags, until the fixed text behind it."""
        for trigger in node.given["triggers"]:
            if literal and (trigger in literal or literal in trigger):
                raise TagError(
                    f"at `{node.where}`: the trigger {excerpt(trigger)} and the end {excerpt(literal)} overlap"
                )
        first_only, needed = node.given.get("stop_after_first"), node.given.get("at_least_one")
        tail = self._free(node, literal, final)
        cases: list[str] = []
        for trigger, bodies in node.by_trigger.items():
            behind = [[*body, literal] for body in bodies] if first_only else bodies
            cases.append(f"{self._ended('TEXT', trigger)} {self._one_of(behind, bool(first_only) and final)}")
        tags = f"({' | '.join(cases)})"
        if first_only:
            return tags if needed else f"({tags} | {tail})"
        return f"{tags}{'+' if needed else '*'} {tail}"

    def _rule(self, expression: str) -> str:
        name = f"part_{len(self.rules)}"
        self.rules.append(f"{name}: {expression}")
        return name


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
