"""The host's random numbers are those of the operator `sample`."""

from __future__ import annotations

import numpy as np
import torch

from headrace.kernels.sample.philox import gumbel
from headrace.speculation.draws import gumbel_noise


def test_the_noise_of_some_tokens() -> None:
    rng = np.random.default_rng(0)
    seeds = np.array([0, 1, 2**64 - 1, 2**63, 12345678901234567], np.uint64)
    positions = np.array([0, 1, 77, 2**20, 2**31 - 1], np.int64)
    tokens = np.stack([rng.permutation(500)[:40] for _ in seeds])
    whole = gumbel(torch.from_numpy(seeds.view(np.int64)), torch.from_numpy(positions), 500).numpy()
    found = gumbel_noise(seeds, positions, tokens)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.take_along_axis(whole, tokens, 1), rtol=2e-6, atol=2e-6)
