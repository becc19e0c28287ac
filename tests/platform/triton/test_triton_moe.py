"""`moe` by interpreter: on its generator's inputs, on every packed form, and with the same bits in any batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from test_triton_linear import WEIGHTS
from triton_support import BY_NAME, CPU, operator, rng, run

from headrace.errors import PlatformError
from headrace.kernels import random
from headrace.kernels.moe.generate import draw_routing
from headrace.kernels.moe.reference import route
from headrace.kernels.moe.routing import Routing
from headrace.kernels.tritonlib.launch_config import LaunchConfig
from headrace.kernels.weight import Weight
from headrace.quant.weights import stack

SPEC = BY_NAME["moe"]
Tensor = torch.Tensor


def generated(dtype: str, count: int) -> list[dict[str, Any]]:
    """Random calls that the interpreter can run quickly."""
    found = (SPEC.generate(rng(seed), CPU, dtype) for seed in range(400))
    quick = (a for a in found if len(a["x"]) * a["routing"].top_k <= 12 and a["x"].shape[1] <= 100)
    return [next(quick) for _ in range(count)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_over_the_operators_generator(dtype: str) -> None:
    cases = generated(dtype, 6)
    assert {0, 1} <= {len(a["x"]) for a in cases}
    for arguments in cases:
        run(SPEC, arguments, SPEC.tolerance[dtype], dtype=dtype)


def small(weight: Weight, seed: int, rows: int | None = None) -> Weight:
    """Another weight of the same form: its rows in another order, some of them."""
    order = torch.from_numpy(rng(seed).permutation(weight.shape[0]))[:rows]
    taken = weight.take(order)
    taken.activation = weight.activation
    return taken


def mixture(make: Any, tokens: int = 5, experts: int = 2, dtype: str = "bfloat16") -> dict[str, Any]:
    """Gate and up of the form of `make()`; down in plain floats of as many columns as that has rows."""
    first = make()
    width, hidden = first.shape
    plain = [random.weight(rng(i), hidden, width, CPU, dtype, False) for i in range(experts)]
    return {
        "x": random.normal(rng(9), tokens, hidden, device=CPU, dtype=dtype),
        "router": random.normal(rng(8), tokens, experts, device=CPU, dtype=dtype),
        "gate_up": stack([small(first, i) for i in range(2 * experts)]),
        "down": stack(plain),
        "bias": None,
        "routing": Routing(1, renormalize=False),
        "kind": "silu",
    }


@pytest.mark.parametrize("name", [name for name in WEIGHTS if name != "int3"])
def test_every_form_of_weight(name: str) -> None:
    dtype = "float32" if name in ("int4_act_order", "q8_0") else "bfloat16"
    run(SPEC, mixture(WEIGHTS[name], dtype=dtype), SPEC.tolerance[dtype], dtype=dtype)


@pytest.mark.parametrize("form", ["int4_32", "int8_64_zeros", "fp8_block", "q8_0", "int4_act_order"])
def test_every_down_product(form: str) -> None:
    """The second product's rows are pairs', not tokens'."""
    arguments = mixture(WEIGHTS[form])
    width, hidden = arguments["gate_up"].parts[0].shape
    coded = [small(WEIGHTS[form](), i) for i in range(2)]
    plain = [random.weight(rng(i), hidden, width, CPU, "bfloat16", False) for i in range(4)]
    turned = {
        "x": random.normal(rng(9), 5, width, device=CPU, dtype="bfloat16"),
        "gate_up": stack(plain),
        "down": stack(coded),
    }
    run(SPEC, {**arguments, **turned}, SPEC.tolerance["bfloat16"], dtype="bfloat16")


@pytest.mark.parametrize(
    ("rule", "form", "fp8"),
    [("int8_token", "int8_channel", ""), ("int8_token", "int8_64_zeros", ""), ("fp8_token", "fp8_channel", "ocp"),
     ("fp8_group128", "fp8_block", "ocp"), ("fp8_token", "fp8_channel", ""), ("mxfp4", "mxfp4", "")],
)  # fmt: skip
def test_inputs_are_rounded_as_the_scheme_says(rule: str, form: str, fp8: str) -> None:
    def make() -> Weight:
        return replace(WEIGHTS[form](), activation=rule)

    run(SPEC, mixture(make), SPEC.tolerance["bfloat16"], dtype="bfloat16", fp8=fp8)


def test_inputs_that_each_part_rounds_its_own_way_go_to_the_reference(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    arguments = mixture(lambda: replace(WEIGHTS["int8_channel"](), activation="int8_tensor"))
    for index, part in enumerate(arguments["gate_up"].parts):
        part.tensors["input_scale"] = torch.tensor([0.02 + 0.01 * index])
    run(SPEC, arguments, 0.0, dtype="bfloat16")
    assert "each expert rounds its inputs separately: the reference is used" in caplog.text


def test_experts_of_several_forms_are_widened(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    arguments = mixture(WEIGHTS["int4_32"])
    parts = [replace(part, prepared={}) for part in arguments["gate_up"].parts]
    parts[3] = random.weight(rng(3), *parts[3].shape, CPU, "bfloat16", False)
    run(SPEC, {**arguments, "gate_up": stack(parts)}, SPEC.tolerance["bfloat16"], dtype="bfloat16")
    assert "the experts' formats differ" in caplog.text


def test_a_token_gets_the_same_bits_in_any_company() -> None:
    arguments = mixture(WEIGHTS["int8_channel"], tokens=70)
    arguments["router"][:, 1] += 4.0  # more than a block for one expert
    function = operator("moe", dtype="bfloat16")
    whole = function(**arguments)
    for start, stop in ((0, 1), (69, 70), (10, 30)):
        part = {"x": arguments["x"][start:stop], "router": arguments["router"][start:stop]}
        assert torch.equal(function(**{**arguments, **part}), whole[start:stop])
    tiles = operator("moe", dtype="bfloat16", batch_invariant=False)(**arguments)
    torch.testing.assert_close(tiles, whole, rtol=0.05, atol=0.05 * float(whole.abs().max()))


def test_routing_is_the_references() -> None:
    from headrace.kernels.moe.triton_route import choose

    for seed in range(12):
        draws = rng(seed)
        experts, routing = draw_routing(draws)
        router, bias = (2 * random.normal(draws, *shape, device=CPU) for shape in ((3, experts), (experts,)))
        for given in (None, bias):
            ids, shares = choose(router, given, routing, LaunchConfig())
            wanted_ids, wanted = route(router, given, routing)
            assert torch.equal(ids.long(), wanted_ids)
            torch.testing.assert_close(shares, wanted)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_with_its_token(value: float) -> None:
    arguments = mixture(WEIGHTS["int8_32"])
    clean = operator("moe", dtype="bfloat16")(**arguments)
    arguments["router"][1], arguments["x"][3, 7] = value, value
    found = operator("moe", dtype="bfloat16")(**arguments)
    assert torch.equal(found[[0, 2, 4]], clean[[0, 2, 4]])


def test_plain_matrices_are_held_once() -> None:
    arguments = mixture(lambda: random.weight(rng(), 32, 48, CPU, "bfloat16", False))
    bound = operator("moe", dtype="bfloat16")
    for name in ("gate_up", "down"):
        bound.pack(arguments[name])
        whole = {part.tensors["weight"].untyped_storage().data_ptr() for part in arguments[name].parts}
        assert len(whole) == 1
    bound(**arguments)


def test_an_unknown_activation_is_refused() -> None:
    arguments = mixture(WEIGHTS["int8_32"])
    with pytest.raises(PlatformError, match="kind 'relu': choose one of silu, gelu, gelu_tanh"):
        operator("moe")(**{**arguments, "kind": "relu"})
