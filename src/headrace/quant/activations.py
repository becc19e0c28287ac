"""Maps compressed-tensors' `input_activations` to the names of `kernels.linear.activation`."""

from __future__ import annotations

import logging

from headrace.errors import UnsupportedModel, truncate
from headrace.settings import Settings

__all__ = ["input_rule", "log_token_scales"]

_log = logging.getLogger(__name__)
_Rule = tuple[str, int, str, str, int | None, bool]
_RULES: dict[_Rule, str] = {
    ("int", 8, "token", "dynamic", None, True): "int8_token",
    ("int", 8, "token", "dynamic", None, False): "int8_token_asymmetric",
    ("int", 8, "tensor", "dynamic", None, True): "int8_token",
    ("int", 8, "tensor", "dynamic", None, False): "int8_token_asymmetric",
    ("int", 8, "tensor", "static", None, True): "int8_tensor",
    ("float", 8, "token", "dynamic", None, True): "fp8_token",
    ("float", 8, "tensor", "dynamic", None, True): "fp8_token",
    ("float", 8, "tensor", "static", None, True): "fp8_tensor",
    ("float", 8, "group", "dynamic", 128, True): "fp8_group128",
    ("float", 4, "group", "dynamic", 32, True): "mxfp4",
    ("float", 4, "tensor_group", "local", 16, True): "nvfp4",
}
"""By type, bits, strategy, dynamic, group and symmetry. A dynamic scale per tensor becomes one per token: see
`log_token_scales`."""


def input_rule(settings: Settings | None, where: str) -> str | None:
    """The rounding rule of inputs; None if they are not rounded. Raises UnsupportedModel that names the rule."""
    if settings is None or not settings.values():
        return None
    dynamic = settings.get("dynamic")
    when = settings.text("dynamic") if isinstance(dynamic, str) else "dynamic" if settings.flag("dynamic") else "static"
    key = (
        settings.text("type", "int"),
        settings.optional_integer("num_bits"),
        settings.optional_text("strategy"),
        when,
        settings.optional_integer("group_size"),
        settings.flag("symmetric", True),
    )
    rule = _RULES.get(key)  # type: ignore[arg-type]
    if rule is None:
        kind, bits, strategy, when, group, symmetric = key
        raise UnsupportedModel(
            f"{where}: inputs quantized to {truncate(kind, 40)} of {bits} bits per {truncate(str(strategy), 40)} "
            f"(group {group}), {truncate(when, 40)}, {'symmetric' if symmetric else 'asymmetric'}, are not supported"
        )
    if key[2:4] == ("tensor", "dynamic"):
        log_token_scales(where)
    return rule


def log_token_scales(where: str) -> None:
    """Log that inputs get one scale per token although the scheme computes one scale from all tokens of a step.

    So a row does not depend on the other tokens of its step. The result for a single token is the scheme's; with more
    tokens, the scale is never coarser than the scheme's.
    """
    _log.info("%s: inputs are rounded with one scale per token, not with one scale for all tokens of a step", where)
