"""The scans against what transformers computes for Qwen3-Next and Mamba-2: results and final states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headrace.kernels import random
from headrace.kernels.causal_conv1d.reference import causal_conv1d
from headrace.kernels.gated_delta_rule.reference import gated_delta_rule
from headrace.kernels.mamba2_scan.reference import mamba2_scan
from headrace.kernels.ops import Batch
from headrace.kernels.recurrence import CHUNK

CPU = torch.device("cpu")
Tensor = torch.Tensor


def _normal(seed: int, *shape: int) -> Tensor:
    return random.normal(np.random.default_rng(seed), *shape, device=CPU)


def _prompt(tokens: int) -> Batch:
    return random.batch(np.random.default_rng(0), random.Shape((tokens,), (0,), 16), CPU)


@pytest.mark.parametrize("form", ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("tokens", [37, 5 * CHUNK])
def test_gated_delta_rule(form: str, normalise: bool, tokens: int) -> None:
    module = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    heads, size = 3, 24
    q, k, v = (_normal(seed, tokens, heads, size) for seed in range(3))
    k = k if normalise else k / k.norm(dim=-1, keepdim=True)
    decay, strength = -_normal(3, tokens, heads).abs(), _normal(4, tokens, heads).sigmoid()
    want, last = getattr(module, form)(
        q[None], k[None], v[None], decay[None], strength[None], initial_state=None, output_final_state=True,
        use_qk_l2norm_in_kernel=normalise,
    )  # fmt: skip
    batch, state = _prompt(tokens), torch.full((3, heads, size, size), torch.nan)
    pending = torch.full((3, CHUNK, heads * (2 * size + 2)), torch.nan)
    qkv = torch.cat([q, k, v], 1).flatten(1)
    found = gated_delta_rule(qkv, decay, strength, batch, state, pending, heads, size**-0.5, normalise)
    torch.testing.assert_close(found.view(tokens, heads, size), want[0], rtol=1e-4, atol=1e-5)
    if tokens % CHUNK == 0:
        torch.testing.assert_close(state[int(batch.slots[0])], last[0], rtol=1e-4, atol=1e-5)


def _mixer_config(module: Any) -> Any:
    return module.Mamba2Config(
        hidden_size=32, num_heads=8, head_dim=8, expand=2, state_size=16, n_groups=2, conv_kernel=4, chunk_size=32,
        num_hidden_layers=1, vocab_size=20, time_step_limit=(0.0, 3.0),
    )  # fmt: skip


def test_mamba2_scan_and_convolution_within_a_mixer() -> None:
    """A whole layer: projections, gated norm theirs, the convolution and the scan ours."""
    module = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    torch.manual_seed(0)
    tokens, mixer = 45, module.Mamba2Mixer(_mixer_config(module), 0).eval()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x, batch = _normal(0, 1, tokens, 32), _prompt(tokens)
    with torch.no_grad():
        want = mixer(x)
        want = want[0] if isinstance(want, tuple) else want
        gate, xbc, dt = mixer.in_proj(x)[0].split([64, 64 + 2 * 2 * 16, 8], -1)
        memory = torch.full((3, 3, 128), torch.nan)
        xbc = causal_conv1d(xbc, mixer.conv1d.weight.squeeze(1), mixer.conv1d.bias, True, batch, memory)
        state, pending = torch.full((3, 8, 8, 16), torch.nan), torch.full((3, CHUNK, 64 + 32 + 8), torch.nan)
        y = mamba2_scan(
            xbc, dt, -mixer.A_log.exp(), mixer.D, mixer.dt_bias, (0.0, 3.0), batch, state, pending, 2
        )  # fmt: skip
        found = mixer.out_proj(mixer.norm(y[None], gate[None]))
    torch.testing.assert_close(found, want.view(found.shape), rtol=1e-4, atol=1e-4)


def test_mamba2_scan_leaves_the_final_state() -> None:
    module = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    tokens, heads, size, n, groups = 4 * CHUNK, 4, 8, 16, 2
    x, dt = _normal(0, tokens, heads, size), _normal(1, tokens, heads)
    b, c = _normal(2, tokens, groups, n), _normal(3, tokens, groups, n)
    a, d, bias = -_normal(4, heads).abs(), _normal(5, heads), _normal(6, heads)
    want, last = module.mamba2_chunk_scan(
        x[None], dt[None], a, b[None], c[None], 32, D=d, dt_bias=bias, dt_softplus=True, return_final_states=True
    )
    batch, state = _prompt(tokens), torch.full((3, heads, size, n), torch.nan)
    pending = torch.full((3, CHUNK, heads * size + groups * n + heads), torch.nan)
    xbc = torch.cat([x.flatten(1), b.flatten(1), c.flatten(1)], 1)
    found = mamba2_scan(xbc, dt, a, d, bias, (0.0, float("inf")), batch, state, pending, groups)
    torch.testing.assert_close(found.view(tokens, heads, size), want[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state[int(batch.slots[0])], last[0], rtol=1e-4, atol=1e-4)
