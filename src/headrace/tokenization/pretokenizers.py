"""Pre-tokenisers of GGUF files, by the name in `tokenizer.ggml.pre`: they split text into words for byte-level BPE.

A GGUF file names its pre-tokeniser but doesn't contain it, so the patterns of each name are here. A pre-tokeniser is a
sequence of patterns: each splits the pieces of the one before into matches and the text between them.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import UnsupportedModel, excerpt

__all__ = ["PRE_TOKENIZERS", "PreTokenizer", "pre_tokenizer"]


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    patterns: tuple[str, ...]
    ignore_merges: bool = False
    """A word that is a token is encoded as this token, independently of the merges."""
    add_bos: bool = False
    """The default if the file doesn't set it."""


_SUFFIX = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LETTERS = rf"(?:{_SUFFIX})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|"
_QWEN2 = _LETTERS + r"\p{N}|" + _MARKS + _BLANKS
_LLAMA3 = _LETTERS + r"\p{N}{1,3}|" + _MARKS + _BLANKS
_QWEN35 = (
    rf"(?:{_SUFFIX})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|" + _BLANKS
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|"
_TEKKEN = "|".join(_CASED) + r"|\p{N}|" + _SLASHED + _BLANKS
_GPT4O = "|".join(f"{word}(?:{_SUFFIX})?" for word in _CASED) + r"|\p{N}{1,3}|" + _SLASHED + _BLANKS
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _BLANKS,
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")
_DEEPSEEK_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")

_BY_PRE: tuple[tuple[str, PreTokenizer], ...] = (
    ("default", PreTokenizer(_DEFAULT)),
    (
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat mellum modern-bert exaone4 a.x-4.0",
        PreTokenizer((_GPT2,)),
    ),
    ("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", PreTokenizer((r"\p{N}", _GPT2))),
    ("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2", PreTokenizer((_LLAMA3,), True, True)),
    ("dbrx smaug-bpe glm4 chatglm-bpe", PreTokenizer((_LLAMA3,))),
    ("qwen2 deepseek-r1-qwen megrez hunyuan stablelm2 solar-open grok-2 kormo", PreTokenizer((_QWEN2,))),
    ("qwen35", PreTokenizer((_QWEN35,))),
    ("tekken", PreTokenizer((_TEKKEN,), True, True)),
    ("gpt-4o llama4 kanana2 minimax-m2", PreTokenizer((_GPT4O,))),
    ("deepseek-v3 hunyuan-dense", PreTokenizer(_DEEPSEEK3)),
    ("deepseek-coder", PreTokenizer(_DEEPSEEK_CODER)),
    ("falcon", PreTokenizer(_FALCON)),
)
PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: pre for names, pre in _BY_PRE for name in names.split()}


def pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokeniser of a name. Raises UnsupportedModel for an unknown one: a guess could tokenise wrongly, without
    an error."""
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnsupportedModel(
            f"tokenizer.ggml.pre is {excerpt(name)}: this pre-tokeniser is not known (known: {known})"
        )
    return found
