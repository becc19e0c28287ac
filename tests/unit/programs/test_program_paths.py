"""Token paths: what is known as tokens is never made of text again."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.programs.token_path import PathEncoder, TokenPath

PAIRS = {"th": 1000, "e.": 1001, ".\n": 1002}
TEXTS = {number: text for text, number in PAIRS.items()}


class PairTokenizer:
    """Letters, and pairs of letters that are one token. With `spaced`, each text begins with a space."""

    def __init__(self, spaced: bool = False) -> None:
        self.spaced = spaced
        self.encoded: list[str] = []

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.encoded.append(text)
        rest, ids = (" " if self.spaced else "") + text, [1] if add_special_tokens else []
        while rest:
            pair = rest[:2]
            ids.append(PAIRS.get(pair, ord(rest[0])))
            rest = rest[2 if pair in PAIRS else 1 :]
        return ids

    def encode_chat(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return self.encode(text, add_special_tokens)

    def stream(self, skip_special_tokens: bool = True, prompt_tail: Sequence[int] = ()) -> PairStream:
        return PairStream()


class PairStream:
    unfinished = False

    def push(self, token_id: int) -> str:
        return "" if token_id == 1 else TEXTS.get(token_id) or chr(token_id)

    def flush(self) -> str:
        return ""


def test_text_behind_known_tokens_is_encoded_alone() -> None:
    tokenizer = PairTokenizer()
    encoder = PathEncoder(tokenizer)
    first = encoder.path("at", False, None)
    assert first == TokenPath("at", (1, 97, 116), "", 3)
    made = encoder.generated(first, [120], "x", True, False, "r")
    assert made == TokenPath("atx", (1, 97, 116, 120), "r")
    second = encoder.path("atx the", False, made)
    assert second.ids == (*first.ids, 120, 32, 1000, 101)
    assert (second.open, second.encoded) == ("r", 3)
    assert tokenizer.encoded == ["at", " the"]


def test_a_boundary_that_would_merge_stays() -> None:
    """ "t" was generated, and "h" follows: as one text it would be another token."""
    encoder = PathEncoder(PairTokenizer())
    made = encoder.generated(encoder.path("a", False, None), [116], "t", True, False, "")
    assert encoder.path("ath", False, made).ids == (1, 97, 116, 104)
    assert encoder.path("ath", False, None).ids == (1, 97, 1000)


def test_a_text_is_encoded_once() -> None:
    tokenizer = PairTokenizer()
    encoder = PathEncoder(tokenizer)
    known = encoder.path("a", False, None)
    for _ in range(3):
        encoder.path("a, then", False, known)
    assert tokenizer.encoded == ["a", ", then"]


def test_a_template_that_writes_earlier_text_in_another_way() -> None:
    encoder = PathEncoder(PairTokenizer())
    known = TokenPath("<a>the", (5, 6), "r")
    found = encoder.path("<a> the</a>", True, known)
    assert found.ids == tuple(PairTokenizer().encode("<a> the</a>", False))
    assert (found.open, found.encoded) == ("", len(found.ids))


def test_a_vocabulary_that_cannot_write_the_text_alone() -> None:
    encoder = PathEncoder(PairTokenizer(spaced=True))
    known = encoder.path("a", False, None)
    assert encoder.path("ab", False, known).ids == (1, 32, 97, 98)
    assert encoder.behind(known.ids, "b") is None


def test_a_stop_within_a_token() -> None:
    """The stop is the newline of ".\\n": the dot before it is encoded anew, the tokens before that one stay."""
    encoder = PathEncoder(PairTokenizer())
    prompt = encoder.path("a", False, None)
    cut = encoder.generated(prompt, [98, 1002], "b.", True, True, "r")
    assert cut == TokenPath("ab.", (1, 97, 98, 46), "r")
    whole = encoder.generated(prompt, [98, 46, 10], "b.", True, True, "r")
    assert whole == TokenPath("ab.", (1, 97, 98, 46), "r")
    nothing = encoder.generated(prompt, [10], "", True, True, "r")
    assert nothing == TokenPath("a", (1, 97), "r")
    spaced = PathEncoder(PairTokenizer(spaced=True))
    assert spaced.generated(prompt, [98, 1002], "b.", True, True, "r") is None
