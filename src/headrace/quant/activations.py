"""compressed-tensors' `input_activations` to the names of `kernels.linear.activation`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import UnsupportedModel

__all__ = ["input_rule"]

_Rule = tuple[str, int, str, str, int | None, bool]
_RULES: dict[_Rule, str] = {
    ("int", 8, "token", "dynamic", None, True): "int8_token",
    ("int", 8, "token", "dynamic", None, False): "int8_token_asymmetric",
    ("int", 8, "tensor", "static", None, True): "int8_tensor",
    ("float", 8, "token", "dynamic", None, True): "fp8_token",
    ("float", 8, "tensor", "static", None, True): "fp8_tensor",
    ("float", 8, "group", "dynamic", 128, True): "fp8_group128",
    ("float", 4, "group", "dynamic", 32, True): "mxfp4",
    ("float", 4, "tensor_group", "local", 16, True): "nvfp4",
}
"""By type, bits, strategy, dynamic, group and symmetry."""


def input_rule(settings: Mapping[str, Any] | None, where: str) -> str | None:
    """None where inputs stay as they are. Raises UnsupportedModel that spells out a rule that is not built.

    A scale drawn from the whole batch at run time is among those: a row's result would depend on its company.
    """
    if not settings:
        return None
    dynamic = settings.get("dynamic", False)
    when = dynamic if isinstance(dynamic, str) else "dynamic" if dynamic else "static"
    key = (
        settings.get("type", "int"),
        settings.get("num_bits"),
        settings.get("strategy"),
        when,
        settings.get("group_size"),
        bool(settings.get("symmetric", True)),
    )
    rule = _RULES.get(key)  # type: ignore[arg-type]
    if rule is None:
        kind, bits, strategy, when, group, symmetric = key
        raise UnsupportedModel(
            f"{where}: inputs quantised to {kind} of {bits} bits a {strategy} (group {group}), {when}, "
            f"{'symmetric' if symmetric else 'asymmetric'}, are not supported"
        )
    return rule
