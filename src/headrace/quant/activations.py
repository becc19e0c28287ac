"""compressed-tensors' `input_activations` to the names of `kernels.linear.activation`."""

from __future__ import annotations

import logging

from headrace.errors import UnsupportedModel, cut
from headrace.settings import Settings

__all__ = ["by_token", "input_rule"]

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
"""By type, bits, strategy, dynamic, group and symmetry. A tensor's dynamic scale is that of one token: see `by_token`."""


def input_rule(settings: Settings | None, where: str) -> str | None:
    """None where inputs stay as they are. Raises UnsupportedModel that spells out a rule that is not built."""
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
            f"{where}: inputs quantised to {cut(kind, 40)} of {bits} bits a {cut(str(strategy), 40)} (group {group}), "
            f"{cut(when, 40)}, "
            f"{'symmetric' if symmetric else 'asymmetric'}, are not supported"
        )
    if key[2:4] == ("tensor", "dynamic"):
        by_token(where)
    return rule


def by_token(where: str) -> None:
    """Says that a scale which the scheme draws from all tokens of a step is drawn from one: so no row depends on its company,
    a token alone gives what the scheme says, and in company its scale is never the coarser one."""
    _log.info("%s: inputs are rounded under a scale a token, not one for all tokens that happen to share a step", where)
