"""Answers on a terminal: markdown by blocks, and nothing that steers the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headrace.cli.answer_view import MarkdownView, PlainView, first_block

TEXT = """\
# Rivers

Three *long* ones:

1. the **Nile**

   which floods
2. the Amazon

```python
a = 1

b = 2
```

Some <b>HTML</b> & a `code`.
"""


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("", ""),
        ("one\ntwo", "one\ntwo"),
        ("one\n\n", "one\n\n"),
        ("one\n\ntwo", "\ntwo"),
        ("one\n\n\ntwo", "\ntwo"),
        ("- a\n\n  more of a", "- a\n\n  more of a"),
        ("```\none\n\ntwo", "```\none\n\ntwo"),
        ("```\none\n\ntwo\n```\n\nend", "\nend"),
        ("~~~~\n```\n\ntwo\n~~~\n\nx\n~~~~\n\nend", "\nend"),
        ("a\n\n```\none\n\ntwo", "\n```\none\n\ntwo"),
        ("a\n\nb\n\nc", "\nb\n\nc"),
    ],
)
def test_blocks_end_at_empty_lines_outside_of_fences(text: str, rest: str) -> None:
    assert text[first_block(text) :] == rest


def shown(pieces: list[str], width: int = 60, height: int = 10) -> str:
    """What stays on a terminal's screen, without what was drawn in between."""
    out = io.StringIO()
    view = MarkdownView(Console(file=out, width=width, height=height, force_terminal=False))
    with view.answer() as show:
        for piece in pieces:
            show(piece)
    return out.getvalue()


def test_pieces_of_any_size_show_the_same() -> None:
    whole = shown([TEXT])
    assert shown(list(TEXT)) == whole
    for words in ("Rivers", "1 the Nile", "which floods", "2 the Amazon", "a = 1", "b = 2", "<b>HTML</b> & a code."):
        assert words in whole, whole
    assert "*" not in whole
    assert "```" not in whole


def test_an_answer_longer_than_the_screen_is_complete() -> None:
    lines = [f"line {number}  \n" for number in range(100)]
    found = shown(lines)
    assert [line.strip() for line in found.splitlines()] == [line.strip() for line in lines]


def test_control_characters_do_not_reach_the_terminal() -> None:
    out = io.StringIO()
    view = MarkdownView(Console(file=out, width=60, force_terminal=True, color_system=None))
    with view.answer() as show:
        show("a\x1b[2Jb")
    assert "\x1b[2J" not in out.getvalue()
    assert "a\N{REPLACEMENT CHARACTER}[2Jb" in out.getvalue()


def test_an_interrupted_answer_keeps_what_was_shown() -> None:
    out = io.StringIO()
    view = MarkdownView(Console(file=out, width=60))

    def answer() -> None:
        with view.answer() as show:
            show("half an ans")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer()
    assert "half an ans" in out.getvalue()


def test_plain_answers_are_as_they_come() -> None:
    out, notes = io.StringIO(), io.StringIO()
    view = PlainView(out, notes)
    with view.answer() as show:
        show("**a")
        show("** b")
    view.note("2 tokens")
    assert (out.getvalue(), notes.getvalue()) == ("**a** b\n", "(2 tokens)\n")
