"""The fields of a request about speculative decoding: `prediction` and `speculation`."""

from __future__ import annotations

from headrace.client.api import ModelInfo
from headrace.client.speculation_choice import SpeculationChoice
from headrace.server.context import ServerTokenizer
from headrace.server.request_params import encode_within
from headrace.server.schemas import GenerationRequest

__all__ = ["predicted_tokens", "speculation_choice"]


def predicted_tokens(body: GenerationRequest, tokenizer: ServerTokenizer, info: ModelInfo) -> tuple[int, ...]:
    """The tokens of the prediction, empty without one. Runs in any thread. Raises ContextOverflow for a text that is
    clearly longer than the context; the client checks the number of tokens."""
    if body.prediction is None:
        return ()
    content = body.prediction.content
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    return tuple(encode_within(tokenizer.encode, text, False, "prediction", info.max_model_len))


def speculation_choice(body: GenerationRequest) -> SpeculationChoice:
    wanted = body.speculation
    if wanted is None or isinstance(wanted, bool):
        return SpeculationChoice.of(wanted)
    return SpeculationChoice(wanted.method, wanted.max_tokens)
