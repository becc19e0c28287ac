"""Gate, up and activation in one kernel: the bits of the two operators that it stands for, in every format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import linear_weights as make
import numpy as np
import pytest
import torch
from linear_weights import MAKERS

from headrace.errors import PlatformError
from headrace.kernels.linear.cpu_pack import Compute
from headrace.kernels.registry import OPS, binding
from headrace.kernels.weight import Weight
from headrace.platforms.cpu import native
from headrace.platforms.cpu.native_device import NativeDevice
from headrace.platforms.cpu.native_launch import EagerLauncher, Launcher
from headrace.platforms.cpu.native_linear import NativeLinear
from headrace.platforms.cpu.native_ops import NativeOps
from headrace.platforms.cpu.native_team import Team
from headrace.quant.weights import stack

ISAS = native.usable()
KINDS = ("silu", "gelu", "gelu_tanh")


@dataclass
class Counting(EagerLauncher):
    """Knows which kernels were called."""

    def __init__(self, team: Team) -> None:
        super().__init__(team)
        self.called: list[str] = []

    def call(self, kernel: str, *rest: object) -> None:
        self.called.append(kernel)
        super().call(kernel, *rest)  # type: ignore[arg-type]


@dataclass
class Owner:
    launcher: Launcher


@pytest.fixture(scope="module", params=ISAS)
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    found = Team(native.load(request.param), 2)
    yield found
    found.close()


def both(
    team: Team, weight: Weight, x: torch.Tensor, kind: str, compute: Compute
) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """The one kernel's result, that of the two, and the kernels that the first took."""
    launcher = Counting(team)
    matrices = NativeLinear(Owner(launcher), compute)
    found = matrices.gated_linear(x, weight, kind)
    called = list(launcher.called)
    return found, NativeOps(launcher).gated_activation(matrices.linear(x, weight), kind), called


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_the_bits_of_two_operators(team: Team, name: str) -> None:
    rng = np.random.default_rng(7)
    for i, tokens in enumerate((0, 1, 7, 64, 65, 150)):
        columns, half = int(rng.integers(1, 400)), int(rng.integers(1, 70))
        weight = stack([MAKERS[name](rng, half, columns) for _ in range(2)], "gate and up")
        weight.bias = make.normal(rng, 2 * half) if i % 2 else None
        compute: Compute = ("int8", "bfloat16", "float32")[i % 3]
        found, expected, called = both(team, weight, make.normal(rng, tokens, weight.shape[1]), KINDS[i % 3], compute)
        assert torch.equal(found, expected), (tokens, columns, half)
        assert called == ["gated_linear"] or len(weight.parts) != 2


def test_one_matrix_of_both_halves(team: Team) -> None:
    rng = np.random.default_rng(8)
    for half, fused in ((48, True), (40, False), (5, False)):
        weight = MAKERS["bfloat16"](rng, 2 * half, 100)
        found, expected, called = both(team, weight, make.normal(rng, 9, 100), "silu", "bfloat16")
        assert torch.equal(found, expected)
        assert called == (["gated_linear"] if fused else ["linear", "gated_activation"])


def test_halves_in_different_formats_are_no_pair(team: Team) -> None:
    rng = np.random.default_rng(9)
    weight = stack([MAKERS["bfloat16"](rng, 32, 64), MAKERS["int8-g0"](rng, 32, 64)], "gate and up")
    found, expected, called = both(team, weight, make.normal(rng, 80, 64), "gelu", "int8")
    assert torch.equal(found, expected)
    assert called == ["gated_linear"]


def test_unknown_kind_names_the_choices(team: Team) -> None:
    rng = np.random.default_rng(10)
    with pytest.raises(PlatformError, match="choose one of silu, gelu, gelu_tanh"):
        both(team, MAKERS["bfloat16"](rng, 32, 64), make.normal(rng, 2, 64), "relu", "int8")


def test_device_without_a_form_composes_it() -> None:
    """With its own operators, not with references."""
    device = NativeDevice(threads=1)
    try:
        kinds: list[str] = []

        class Plain:
            def capabilities(self) -> object:
                return device.capabilities()

            def op(self, spec: object) -> object:
                if spec not in OPS:
                    return None
                own = device.op(spec)  # type: ignore[arg-type]

                def counted(*args: object, **kwargs: object) -> object:
                    kinds.append(spec.name)  # type: ignore[attr-defined]
                    assert own is not None
                    return own(*args, **kwargs)

                return counted

            def extension(self, kind: object) -> None:
                return None

        rng = np.random.default_rng(11)
        weight, x = MAKERS["bfloat16"](rng, 64, 48), make.normal(rng, 5, 48)
        found = binding(Plain()).gated_linear(x, weight, "silu")  # type: ignore[arg-type]
        assert kinds == ["linear", "gated_activation"]
        assert torch.equal(found, binding(device).gated_linear(x, weight, "silu"))
    finally:
        device.close()
