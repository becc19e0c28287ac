"""Words of each pre-tokeniser. The expected words follow from the original tokenizers' published patterns."""

from __future__ import annotations

import pytest
from tokenizers import Regex, pre_tokenizers

from headrace.tokenization.pretokenizers import PRE_TOKENIZERS, pre_tokenizer

TEXT = "I'm It'S 12345 naïve!?\n\n  x=α½"


def words(name: str, text: str) -> list[str]:
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre_tokenizer(name).patterns]
    return [word for word, _ in pre_tokenizers.Sequence(splits).pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", ["I", "'m", " It", "'", "S", " 12345", " naïve", "!?", "\n\n ", " x", "=", "α", "½"]),
        (
            "smollm",
            ["I", "'m", " It", "'", "S", " ", "1", "2", "3", "4", "5", " naïve", "!?", "\n\n ", " x", "=", "α", "½"],
        ),
        ("llama-bpe", ["I", "'m", " It", "'S", " ", "123", "45", " naïve", "!?\n\n", " ", " x", "=α", "½"]),
        ("qwen2", ["I", "'m", " It", "'S", " ", "1", "2", "3", "4", "5", " naïve", "!?\n\n", " ", " x", "=α", "½"]),
        ("qwen35", ["I", "'m", " It", "'S", " ", "1", "2", "3", "4", "5", " naïve", "!?\n\n", " ", " x", "=α", "½"]),
        ("tekken", ["I", "'m", " It", "'S", " ", "1", "2", "3", "4", "5", " naïve", "!?\n\n", " ", " x", "=α", "½"]),
        ("gpt-4o", ["I'm", " It'S", " ", "123", "45", " naïve", "!?\n\n", " ", " x", "=α", "½"]),
        ("default", ["I", "'", "m", " It", "'", "S", " ", "123", "45", " naïve", "!?", "\n\n ", " x", "=", "α", "½"]),
        ("falcon", ["I", "'", "m", " It", "'", "S", " ", "123", "45", " naïve", "!?", "\n\n ", " x", "=", "α", "½"]),
        (
            "deepseek-coder",
            [
                "I", "'", "m", " It", "'", "S", " ", "1", "2", "3", "4", "5", " naïve", "!?", "\n", "\n", " ", " x",
                "=", "α", "½",
            ],
        ),
    ],
)  # fmt: skip
def test_words(name: str, expected: list[str]) -> None:
    assert words(name, TEXT) == expected


def test_letters_keep_their_marks_if_the_pattern_includes_them() -> None:
    text = "क\u093fx"
    assert words("qwen35", text) == [text]
    assert words("qwen2", text) == ["क", "\u093fx"]


def test_upper_case_starts_a_word_in_some_pre_tokenisers() -> None:
    assert words("gpt-4o", "camelCaseWord") == ["camel", "Case", "Word"]
    assert words("tekken", "camelCaseWord") == ["camel", "Case", "Word"]
    assert words("llama-bpe", "camelCaseWord") == ["camelCaseWord"]


def test_chinese_is_split_from_latin() -> None:
    assert words("deepseek-v3", "abc中文def 1234") == ["abc", "中文", "def", " ", "123", "4"]


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
@pytest.mark.parametrize("text", [TEXT, "", " ", "\r\n\t", "a\u3000b", "😀 x😀", "\x00"])
def test_nothing_is_lost(name: str, text: str) -> None:
    assert "".join(words(name, text)) == text


def test_flags_of_pre_tokenisers() -> None:
    assert {name for name, pre in PRE_TOKENIZERS.items() if pre.ignore_merges} == set(
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 tekken".split()
    )
    assert all(pre.add_bos == pre.ignore_merges for pre in PRE_TOKENIZERS.values())
