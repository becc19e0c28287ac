"""The convolution over drafted blocks, term by term."""

from __future__ import annotations

import numpy as np
import torch

from headrace.kernels.block_conv.generate import generate
from headrace.kernels.block_conv.reference import block_conv


def test_every_term() -> None:
    for seed in range(8):
        given = generate(np.random.default_rng(seed), torch.device("cpu"), "float32")
        x, kernel, base = given["x"], given["kernel"], given["base"]
        taps, hidden = base.shape
        own = kernel.view(len(x), 2, taps, kernel.shape[1] // (2 * taps))
        group = hidden // own.shape[-1]
        expected = torch.zeros_like(x)
        for row in range(len(x)):
            for tap in range(min(taps, row % given["rows"] + 1)):
                for channel in range(hidden):
                    weight = base[tap, channel] + own[row, given["side"], tap, channel // group]
                    expected[row, channel] += weight * x[row - tap, channel]
        torch.testing.assert_close(block_conv(**given), expected, rtol=1e-5, atol=1e-5)


def test_a_block_is_computed_alike_alone_and_in_company() -> None:
    generator = torch.Generator().manual_seed(0)
    x, kernel, base = (torch.randn(*shape, generator=generator) for shape in ((12, 8), (12, 16), (2, 8)))
    together = block_conv(x, kernel, base, 1, 4)
    apart = [block_conv(x[at : at + 4], kernel[at : at + 4], base, 1, 4) for at in (0, 4, 8)]
    assert torch.equal(together, torch.cat(apart))
