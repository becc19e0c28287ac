"""Constrained output that spells a control token: letters, whose token would end the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import LLM, SamplingParams
from headrace.structured_outputs import StructuredOutputs


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), platform="cpu", threads=1, num_blocks=20) as made:
        yield made


FORMS: dict[str, tuple[Callable[[str], dict[str, Any]], str]] = {
    "choice": (lambda spelled: {"choice": [spelled]}, "END"),
    "part of a choice": (lambda spelled: {"choice": [f"a{spelled}b"]}, "aENDb"),
    "regex": (lambda spelled: {"regex": f"x{spelled}"}, "xEND"),
    "json": (lambda spelled: {"json": {"const": spelled}}, '"END"'),
    "grammar": (lambda spelled: {"grammar": f'start: "{spelled}" "!"'}, "END!"),
}
"""By a control token's text: the constraint, and the only text that it allows, where END stands for that text."""


@pytest.mark.parametrize("bias", [{}, {0: 1.0}], ids=["forced", "sampled"])
@pytest.mark.parametrize("name", FORMS)
def test_a_control_token_that_a_grammar_spells_is_text(llm: LLM, name: str, bias: dict[int, float]) -> None:
    """With a bias every token is sampled."""
    form, wanted = FORMS[name]
    for token in sorted(llm.tokenizer.special_ids):
        spelled = llm.tokenizer.token_text(token)
        outputs = StructuredOutputs(**form(spelled))
        params = SamplingParams(max_tokens=60, structured_outputs=outputs, logit_bias=bias, skip_special_tokens=False)
        (found,) = llm.generate("Hello", params)[0].outputs
        assert (found.text, found.finish_reason) == (wanted.replace("END", spelled), "stop")
