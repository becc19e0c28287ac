"""The fields of a request about speculative decoding: `prediction` and `speculation`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.client.api import GenerateRequest, ModelInfo
from headrace.client.speculation_choice import SpeculationChoice
from headrace.server.context import ServerTokenizer
from headrace.server.request_params import encode_within
from headrace.server.schemas import GenerationRequest

__all__ = ["speculation_choice", "with_prediction"]


def with_prediction(
    requests: Sequence[GenerateRequest], body: GenerationRequest, tokenizer: ServerTokenizer, info: ModelInfo
) -> list[GenerateRequest]:
    """The engine's requests with the tokens of the body's prediction, if it has one. Runs in any thread. Raises
    ContextOverflow for a text that is clearly longer than the context; the client checks the number of tokens."""
    if body.prediction is None:
        return list(requests)
    content = body.prediction.content
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    predicted = tuple(encode_within(tokenizer.encode, text, False, "prediction", info.max_model_len))
    return [replace(one, predicted=predicted, speculation=one.speculation.of_prediction(predicted)) for one in requests]


def speculation_choice(body: GenerationRequest) -> SpeculationChoice:
    wanted = body.speculation
    if wanted is None or isinstance(wanted, bool):
        return SpeculationChoice.of(wanted)
    return SpeculationChoice(wanted.method, wanted.max_tokens)
