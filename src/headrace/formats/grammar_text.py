"""A Lark grammar that is being written: rules, JSON schemas that it refers to, and special tokens by their ids."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.formats.states import Part

__all__ = ["GrammarText", "joined", "quoted"]


class GrammarText:
    """Names of rules begin with a word and end with a number."""

    def __init__(self, token_id: Callable[[str], int | None], markers: Iterable[str]) -> None:
        """`token_id` gives the id of a special token's text; `markers` are texts that may be special tokens."""
        self._rules: dict[str, str] = {}
        self._lazy: set[str] = set()
        """Rules that end as early as they can."""
        self._schemas: dict[tuple[str, bool], int] = {}
        self.schemas: list[Mapping[str, Any] | bool] = []
        """Those of `schema_0` and so on."""
        self._texts: dict[str, int] = {}
        self.texts: list[dict[str, Any]] = []
        """Those of the terminals `PATTERN_0` and so on. Each has the keywords that limit it, as in a JSON schema; the
        text behind it (`end`), of which the terminal holds that up to the first special token; the part of `end` that
        stands nowhere else (`marker`; "" if a token tells them apart); and `where`, for errors."""
        self.strict: list[bool] = []
        self.ids = {marker: found for marker in markers if (found := token_id(marker)) is not None}
        special = sorted(self.ids, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, special)) + ")") if special else None

    def reserve(self, word: str) -> str:
        """A name for a rule that is defined later."""
        name = f"{word}_{len(self._rules)}"
        self._rules[name] = ""
        return name

    def define(self, name: str, body: str) -> str:
        self._rules[name] = body
        return name

    def add(self, word: str, body: str) -> str:
        """The name of a new rule."""
        return self.define(self.reserve(word), body)

    def lines(self) -> list[str]:
        return [f"{name}{'[lazy]' * (name in self._lazy)}: {body}" for name, body in self._rules.items()]

    def schema(self, schema: Mapping[str, Any] | bool, strict: bool = False) -> str:
        """The name of the rule of a schema."""
        key = json.dumps(schema), strict
        if key not in self._schemas:
            self._schemas[key] = len(self.schemas)
            self.schemas.append(schema)
            self.strict.append(strict)
        return f"schema_{self._schemas[key]}"

    def text(self, text: str) -> str:
        """Literals and special tokens."""
        return " ".join(f"<[{self.ids[p]}]>" if p in self.ids else quoted(p) for p in self._pieces(text)) or '""'

    def has_token(self, text: str) -> bool:
        return any(piece in self.ids for piece in self._pieces(text))

    def until(self, end: str, length: str = "*") -> str:
        """Any text up to `end`, and `end`. Only a special token in `end` tells it from text that quotes it; without
        one, the text ends at the first place where it stands. `length`: how often any character may stand, as in a
        regular expression."""
        pieces = self._pieces(end)
        at = next((at for at, piece in enumerate(pieces) if piece in self.ids), None)
        if at is None:
            name = self.add("until", f"/(.|\\n){length}{_pattern(end)}/")
            self._lazy.add(name)
            return name
        # As one lexeme: text of its own would take in what stands before the token.
        return f"/(.|\\n){length}{_pattern(''.join(pieces[:at]))}/ {self.text(''.join(pieces[at:]))}"

    def limited(self, end: str, limits: Mapping[str, Any], where: str) -> str:
        """A text within the limits, which are keywords of a JSON schema, and `end`."""
        pieces = self._pieces(end)
        at = next((at for at, piece in enumerate(pieces) if piece in self.ids), None)
        held = {**limits, "end": "".join(pieces[:at]), "marker": (end.strip() or end) if at is None else ""}
        key = json.dumps(held)
        if key not in self._texts:
            self._texts[key] = len(self.texts)
            self.texts.append({**held, "where": where})
        return f"PATTERN_{self._texts[key]} {'' if at is None else self.text(''.join(pieces[at:]))}".rstrip()

    def _pieces(self, text: str) -> list[str]:
        return [piece for piece in (self._split.split(text) if self._split else [text]) if piece]


def joined(parts: Iterable[Part]) -> list[Part]:
    """Adjacent texts as one."""
    found: list[Part] = []
    for part in parts:
        if found and not part.startswith("\0") and not found[-1].startswith("\0"):
            found[-1] += part
        else:
            found.append(part)
    return found


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _pattern(text: str) -> str:
    """A regular expression for the text, between slashes."""
    return re.sub(r"[\\.^$*+?()\[\]{}|/]", lambda found: "\\" + found.group(), text).replace("\n", "\\n")
