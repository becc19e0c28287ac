"""Converts a model's weights (dataclasses, lists and tensors) to plain data and buffers, and back."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from headrace.errors import PlatformError
from headrace.kernels.weight import Weight
from headrace.platforms.interface import PackedForms
from headrace.quant.weights import dense

__all__ = ["Uncacheable", "decode", "encode", "keep_packed_alone"]

Tensor = torch.Tensor
_CLASSES = "headrace.models."
"""The modules of the weights' dataclasses; others are not created from a file."""
_SCALARS = (type(None), bool, int, float, str)
_PLAIN = ("float32", "bfloat16", "float16")
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.int8, torch.uint8)
}


class Uncacheable(Exception):
    """The weights cannot be cached; the message gives the reason."""


def encode(weights: object, forms: PackedForms) -> tuple[Any, list[Tensor]]:
    """(JSON data, the buffers it refers to). Raises Uncacheable."""
    writer = _Writer(forms)
    root = writer.node(weights)
    return {"root": root, "weights": writer.weights}, writer.buffers


def decode(tree: Any, buffers: Sequence[Tensor], forms: PackedForms) -> Any:
    """The inverse of `encode`. Buffers are uint8 and are stored, not copied. Other trees raise various errors."""
    reader = _Reader(tree["weights"], buffers, forms)
    return reader.node(tree["root"])


def keep_packed_alone(weight: Weight, forms: PackedForms) -> None:
    """Release the stored values of a weight if the device reads only its packed form."""
    if forms.dump(weight) is not None:
        weight.tensors, weight.parts, weight.unpack = {}, (), _unread


class _Writer:
    def __init__(self, forms: PackedForms) -> None:
        self._forms = forms
        self._seen: dict[int, int] = {}
        self.weights: list[dict[str, Any]] = []
        self.buffers: list[Tensor] = []

    def node(self, value: Any) -> Any:
        if isinstance(value, _SCALARS):
            return value
        if isinstance(value, Tensor):
            return {"tensor": self._tensor(value)}
        if isinstance(value, Weight):
            return {"weight": self._weight(value)}
        if isinstance(value, (list, tuple)):
            return {type(value).__name__: [self.node(item) for item in value]}
        name = f"{type(value).__module__}:{type(value).__qualname__}"
        if not is_dataclass(value) or not name.startswith(_CLASSES):
            raise Uncacheable(f"a {name} stands among the weights")
        return {"class": name, "fields": {f.name: self.node(getattr(value, f.name)) for f in fields(value)}}

    def _tensor(self, tensor: Tensor) -> list[Any]:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in _DTYPES or tensor.device.type != "cpu":
            raise Uncacheable(f"a tensor of {tensor.dtype} on {tensor.device} stands among the weights")
        self.buffers.append(tensor.contiguous())
        return [len(self.buffers) - 1, dtype, list(tensor.shape)]

    def _weight(self, weight: Weight) -> int:
        """The number of an entry.

        An object that occurs twice, such as an embedding that is also the head, is one entry.
        """
        if id(weight) in self._seen:
            return self._seen[id(weight)]
        entry: dict[str, Any] = {"shape": list(weight.shape), "name": weight.name}
        entry.update(scheme=weight.scheme, activation=weight.activation, wide_inputs=weight.wide_inputs)
        entry["bias"] = self.node(weight.bias)
        dumped = self._forms.dump(weight)
        if dumped is not None:
            start = len(self.buffers)
            self.buffers += dumped[1]
            entry["packed"] = [dumped[0], [[start + i, *_form(b)] for i, b in enumerate(dumped[1])]]
        elif weight.parts:
            entry["parts"] = [self._weight(part) for part in weight.parts]
        elif weight.scheme in _PLAIN:
            entry["plain"] = self._tensor(weight.tensors["weight"])
        else:
            raise Uncacheable(f"{weight.name or 'a weight'} ({weight.scheme}) has no packed form")
        self.weights.append(entry)
        self._seen[id(weight)] = len(self.weights) - 1
        return self._seen[id(weight)]


def _form(tensor: Tensor) -> list[Any]:
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]


class _Reader:
    def __init__(self, entries: Sequence[dict[str, Any]], buffers: Sequence[Tensor], forms: PackedForms) -> None:
        self._buffers = buffers
        self._forms = forms
        self._weights: list[Weight] = []
        for entry in entries:
            # Parts come before their stack.
            self._weights.append(self._weight(entry))

    def node(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        ((kind, content), *rest) = value.items()
        makers: dict[str, Callable[[Any], Any]] = {
            "tensor": self._tensor,
            "weight": self._weights.__getitem__,
            "list": lambda items: [self.node(item) for item in items],
            "tuple": lambda items: tuple(self.node(item) for item in items),
        }
        if kind in makers:
            return makers[kind](content)
        module, _, name = content.partition(":")
        if kind != "class" or not module.startswith(_CLASSES):
            raise ValueError(f"{kind} {content!r} is not of the models")
        made = getattr(importlib.import_module(module), name)
        return made(**{field: self.node(item) for field, item in rest[0][1].items()})

    def _tensor(self, entry: Sequence[Any]) -> Tensor:
        index, dtype, shape = entry
        tensor: Tensor = self._buffers[index].view(_DTYPES[dtype]).view(shape)
        return tensor

    def _weight(self, entry: dict[str, Any]) -> Weight:
        shape = (int(entry["shape"][0]), int(entry["shape"][1]))
        if "plain" in entry:
            weight = dense(self._tensor(entry["plain"]), entry["name"])
        else:
            parts = tuple(self._weights[i] for i in entry.get("parts", ()))
            weight = Weight(entry["scheme"], shape, {}, _unread, parts=parts, name=entry["name"])
        weight.bias = self.node(entry["bias"])
        weight.activation, weight.wide_inputs = entry["activation"], entry["wide_inputs"]
        if "packed" in entry:
            header, buffers = entry["packed"]
            self._forms.load(weight, header, [self._tensor(buffer) for buffer in buffers])
        return weight


def _unread(weight: Weight) -> Tensor:
    raise PlatformError(
        f"{weight.name or 'a weight'} is stored in its packed form alone, but an operator needs its stored values: "
        "the device packs weights for operators that it does not have"
    )
