"""The table of sampling parameters: each field of `SamplingParams` is one row.

Checks, the server's schema, the input arrays of a step and `docs/sampling.md` are all derived from it. A new parameter
needs one row, and a change of the operator `sample` if the device uses it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from headrace.sampling_fields import DeviceRow, Field, field_of, row
from headrace.structured_outputs import StructuredOutputs

__all__ = ["DEVICE_ROWS", "FLOAT_ROWS", "INT_ROWS", "MAX_CHOICES", "MAX_LOGPROBS", "SAMPLING_FIELDS", "SamplingParams"]

MAX_CHOICES = 128
MAX_LOGPROBS = 128
_INT32 = 2**31 - 1
_API_LOGPROBS = (0, 20)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The sampling parameters of one sequence. Defaults are OpenAI's, so an empty request samples at temperature 1.

    Lists, tuples, sets and numpy's arrays and scalars are converted. A value of another type or out of range raises
    InvalidRequest, which names the field. None means the default unless the field's description says otherwise.
    Logprobs are those of the model's own distribution: before temperature, penalties, bias and truncation.
    """

    max_tokens: int | None = row(
        16, Field("whole", "Most tokens to generate.", least=0, most=2**53, none="as many as fit")
    )
    temperature: float = row(
        1.0,
        Field(
            "number",
            "Divides the logits. 0 is greedy: top_p, top_k and min_p are then without effect.",
            least=0,
            most=1e4,
            api=(0, 2),
            device=DeviceRow("float32", 1, (0, 0.7, 1, 1e-8)),
        ),
    )
    top_p: float = row(
        1.0,
        Field(
            "number",
            "Keeps the most likely tokens that make up this share of the probability.",
            least=0,
            most=1,
            above=True,
            device=DeviceRow("float32", 1, (1, 0.9, 0.3)),
        ),
    )
    top_k: int = row(
        0,
        Field(
            "whole",
            "Keeps so many of the most likely tokens. 0 or -1: no limit.",
            least=-1,
            most=_INT32,
            device=DeviceRow("int32", 0, (0, 1, 5)),
            adjust=lambda value: max(0, value),
        ),
    )
    min_p: float = row(
        0.0,
        Field(
            "number",
            "Keeps tokens whose probability is at least this share of the largest.",
            least=0,
            most=1,
            device=DeviceRow("float32", 0, (0, 0.1)),
        ),
    )
    repetition_penalty: float = row(
        1.0,
        Field(
            "number",
            "Multiplicative, over prompt and output (CTRL, arXiv:1909.05858).",
            least=0,
            most=1e4,
            above=True,
            api=(0.01, 100),
            device=DeviceRow("float32", 1, (1, 1.3)),
        ),
    )
    presence_penalty: float = row(
        0.0,
        Field(
            "number",
            "Subtracted from the logits of tokens that stand in the output.",
            least=-1e4,
            most=1e4,
            api=(-2, 2),
            device=DeviceRow("float32", 0, (0, 0.5)),
        ),
    )
    frequency_penalty: float = row(
        0.0,
        Field(
            "number",
            "Subtracted from a token's logit once for each time that it stands in the output.",
            least=-1e4,
            most=1e4,
            api=(-2, 2),
            device=DeviceRow("float32", 0, (0, 0.25)),
        ),
    )
    logit_bias: tuple[tuple[int, float], ...] = row(
        (),
        Field(
            "biases", "Token ids with what is added to their logits, from -100 to 100.", longest=4096, api_longest=1024
        ),
    )
    allowed_token_ids: tuple[int, ...] | None = row(
        None, Field("ids", "The only tokens that may be sampled.", none="all", shortest=1, api_longest=16384)
    )
    seed: int | None = row(
        None,
        Field(
            "whole",
            "Key of the random draws, with the token's position.",
            least=-(2**63),
            most=2**64 - 1,
            none="drawn when the request arrives, and reported nowhere",
            api=(-(2**63), 2**63 - 1),
            adjust=lambda value: value % 2**64,
        ),
    )
    n: int = row(1, Field("whole", "Choices.", least=1, most=MAX_CHOICES))
    stop: tuple[str, ...] = row(
        (), Field("texts", "Texts that end the output. A single text is one stop.", longest=64, api_longest=64)
    )
    bad_words: tuple[str, ...] = row(
        (),
        Field(
            "texts",
            "Texts that the output does not hold, as the tokenizer writes them, with a space before and without one.",
            longest=64,
            api_longest=64,
        ),
    )
    stop_token_ids: tuple[int, ...] = row((), Field("ids", "Tokens that end the output.", api_longest=1024))
    include_stop_str_in_output: bool = row(False, Field("flag", "The text ends behind what stopped it, not before."))
    min_tokens: int = row(
        0, Field("whole", "Tokens that are generated before any stop or end counts.", least=0, most=2**53)
    )
    ignore_eos: bool = row(False, Field("flag", "The model's end tokens don't end the output."))
    skip_special_tokens: bool = row(True, Field("flag", "Special tokens don't show in the text."))
    logprobs: int | None = row(
        None,
        Field(
            "whole",
            "Alternatives to report for each generated token; 0: the chosen one alone.",
            least=0,
            most=MAX_LOGPROBS,
            none="nothing",
            api=_API_LOGPROBS,
        ),
    )
    logprob_token_ids: tuple[int, ...] = row(
        (),
        Field(
            "ids",
            "With `logprobs`: the tokens to report at each generated token, instead of the most likely ones.",
            longest=MAX_LOGPROBS,
            api_longest=MAX_LOGPROBS,
            adjust=lambda value: tuple(dict.fromkeys(value)),
        ),
    )
    prompt_logprobs: int | None = row(
        None,
        Field(
            "whole",
            "Alternatives to report for each token of the prompt; 0: its own logprob alone.",
            least=0,
            most=MAX_LOGPROBS,
            none="nothing",
            api=_API_LOGPROBS,
        ),
    )
    prompt_logprobs_start: int = row(
        0,
        Field(
            "whole",
            "Index of the first prompt token that `prompt_logprobs` reports; those before it may be cached.",
            least=0,
            most=2**53,
        ),
    )
    structured_outputs: StructuredOutputs | None = row(  # noqa: RUF009
        None,
        Field(
            "structure",
            "The form that the output must have: a JSON schema, an expression, choices, a grammar or tags.",
            none="free text",
        ),
    )

    def behind(self, tokens: int) -> SamplingParams:
        """The parameters of a prompt that stands behind so many other tokens."""
        if self.prompt_logprobs is None or not tokens:
            return self
        return replace(self, prompt_logprobs_start=self.prompt_logprobs_start + tokens)

    @property
    def alternatives(self) -> int | None:
        """Tokens that are reported at each generated one, besides its own logprob; None: no logprobs."""
        return None if self.logprobs is None else len(self.logprob_token_ids) or self.logprobs

    def __post_init__(self) -> None:
        """Raises InvalidRequest."""
        for name, field, default in _ROWS:
            value = getattr(self, name)
            if value is default:
                continue
            found = default if value is None and field.none is None else value
            if found is not None:
                found = field.convert(name, found)
            if found is not value:
                object.__setattr__(self, name, found)


SAMPLING_FIELDS: dict[str, Field] = {declared.name: field_of(declared) for declared in fields(SamplingParams)}
"""The rows of the table by name."""
DEVICE_ROWS: dict[str, DeviceRow] = {
    name: field.device for name, field in SAMPLING_FIELDS.items() if field.device is not None
}
"""The parameters that the sampler reads: one array entry for each row of logits."""
FLOAT_ROWS = tuple(name for name, row in DEVICE_ROWS.items() if row.dtype == "float32")
INT_ROWS = tuple(name for name, row in DEVICE_ROWS.items() if row.dtype == "int32")
_ROWS = [(declared.name, field_of(declared), declared.default) for declared in fields(SamplingParams)]
