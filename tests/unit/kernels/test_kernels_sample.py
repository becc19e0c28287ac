"""The sampler: every parameter, every degenerate case, the random numbers and their distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from headrace.kernels.ops import Batch, SampleInputs, SampleOutputs
from headrace.kernels.sample.philox import gumbel, philox
from headrace.kernels.sample.reference import sample
from headrace.kernels.sample.truncate import truncate
from headrace.types import NO_CHOICE, NOT_FINITE

Tensor = torch.Tensor
INF = float("inf")
DEFAULTS: dict[str, tuple[float, torch.dtype]] = {
    "temperature": (0, torch.float32),
    "top_p": (1, torch.float32),
    "top_k": (0, torch.int32),
    "min_p": (0, torch.float32),
    "repetition_penalty": (1, torch.float32),
    "presence_penalty": (0, torch.float32),
    "frequency_penalty": (0, torch.float32),
    "seed": (0, torch.int64),
    "position": (4, torch.int32),
    "target": (-1, torch.int32),
    "prompt_len": (2, torch.int32),
    "allowed_row": (-1, torch.int32),
}


def run(
    logits: Sequence[Sequence[float]] | Tensor,
    *,
    bias: Sequence[tuple[int, int, float]] = (),
    history: Sequence[int] = (0, 0, 0, 0),
    allowed: Sequence[int] = (0,),
    num_logprobs: int = 0,
    padding: int = 0,
    **values: Any,
) -> tuple[SampleOutputs, SampleInputs]:
    """One call; a parameter is one value for all rows or a list."""
    table = torch.as_tensor(logits, dtype=torch.float32)
    rows = len(table)
    fields = {
        name: torch.tensor(np.broadcast_to(values.pop(name, default), rows + padding).tolist(), dtype=dtype)
        for name, (default, dtype) in DEFAULTS.items()
    }
    assert not values
    inputs = SampleInputs(
        **fields,
        slot=torch.arange(rows + padding, dtype=torch.int32),
        bias_row=torch.tensor([b[0] for b in bias], dtype=torch.int32),
        bias_token=torch.tensor([b[1] for b in bias], dtype=torch.int32),
        bias_value=torch.tensor([b[2] for b in bias], dtype=torch.float32),
        allowed=torch.tensor([list(allowed)], dtype=torch.int32),
        history=torch.tensor([*history, *[-7] * 8], dtype=torch.int32).repeat(rows + padding, 1),
    )
    padded = torch.cat([table, torch.full((padding, table.shape[1]), torch.nan)])
    nothing = torch.zeros(0, dtype=torch.int32)
    batch = Batch(torch.tensor([rows, rows, rows], dtype=torch.int32), *[nothing] * 9)
    return sample(padded, inputs, batch, num_logprobs), inputs


def tokens(*args: Any, **kwargs: Any) -> list[int]:
    return run(*args, **kwargs)[0].tokens.tolist()


def test_greedy_takes_the_largest_and_the_lower_id_of_a_tie() -> None:
    assert tokens([[1, 3, 3, 2], [5, 5, 5, 5]], top_k=1, top_p=0.1, min_p=0.9) == [1, 0]


def test_the_token_is_written_to_the_history_of_sampled_rows() -> None:
    out, inputs = run([[0, 1, 0], [0, 1, 0], [0, 1, 0]], target=[-1, 2, -1], position=[4, 4, 12])
    assert out.tokens.tolist() == [1, -1, 1]
    assert inputs.history[:, 4].tolist() == [1, -7, -7]
    assert (inputs.history[2] == torch.tensor([0] * 4 + [-7] * 8)).all()


def test_a_scored_row_reports_its_target() -> None:
    out, _ = run([[0.0, 1.0, 2.0]], target=0, num_logprobs=2)
    expected = torch.tensor([0.0, 1.0, 2.0]).log_softmax(0)
    torch.testing.assert_close(out.logprobs, expected[:1])
    assert out.ranks.tolist() == [3]
    assert out.top_ids.tolist() == [[2, 1]]
    torch.testing.assert_close(out.top_logprobs, expected[[2, 1]][None])


def test_logprobs_are_of_the_raw_logits() -> None:
    out, _ = run([[0.0, 1.0, 2.0]], temperature=0.5, seed=3, bias=[(0, 2, -INF), (0, 1, 50)], repetition_penalty=1.5)
    assert out.tokens.tolist() == [1]
    torch.testing.assert_close(out.logprobs, torch.tensor([0.0, 1.0, 2.0]).log_softmax(0)[1:2])
    assert out.ranks.tolist() == [2]


def test_ties_among_alternatives_go_to_the_lower_id() -> None:
    out, _ = run([[1.0, -0.0, 1.0, 0.0, 1.0]], num_logprobs=4)
    assert out.top_ids.tolist() == [[0, 2, 4, 1]]


def test_more_alternatives_than_tokens() -> None:
    out, _ = run([[1.0, 2.0]], num_logprobs=8)
    assert out.top_ids.tolist() == [[1, 0]]


def test_bias_bans_masks() -> None:
    assert tokens([[0, 1, 2]], bias=[(0, 0, 5.0), (-1, 2, 99.0)]) == [0]
    assert tokens([[0, 1, 2]], bias=[(0, 2, -INF)]) == [1]
    assert tokens([[0, 1, 2]], bias=[(0, 2, -INF), (0, 2, 100.0)]) == [1]
    assert tokens([[0, 1, 2]], bias=[(0, 2, -100.0)]) == [1]
    assert tokens([[0, 1, 2], [0, 1, 2]], allowed=[0b001], allowed_row=[0, -1]) == [0, 2]
    wide = torch.zeros(1, 40)
    wide[0, 39] = 1
    assert tokens(wide, allowed=[-(2**31), 0b0100], allowed_row=0, temperature=0) == [31]


@pytest.mark.parametrize("temperature", [0, 1e-8, 1.0])
def test_a_row_without_an_allowed_token_is_reported_and_writes_nothing(temperature: float) -> None:
    bans = [(0, token, -INF) for token in range(3)]
    out, inputs = run([[0.0, 100.0, 1.0], [0.0, 1.0, 2.0]], bias=bans, temperature=temperature, top_k=1, top_p=0.5)
    assert out.tokens.tolist() == [NO_CHOICE, 2]
    assert (inputs.history[0] == -7).sum() == 12 - 4
    assert tokens([[0.0, 1.0, 2.0]], allowed=[0], allowed_row=0, temperature=temperature) == [NO_CHOICE]
    assert out.logprobs.isfinite().all()


@pytest.mark.parametrize(
    "bad", [[float("nan"), 1.0, 0.0], [INF, 1.0, 0.0], [-INF] * 3, [float("nan")] * 3, [1.0, 0.0, float("nan")]]
)
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_invalid_logits_are_reported_in_sampled_and_scored_rows(bad: list[float], temperature: float) -> None:
    rows = [bad, bad, [-INF, 1.0, 0.0]]
    out, inputs = run(rows, target=[-1, 1, -1], temperature=temperature, top_k=1, num_logprobs=2)
    assert out.tokens.tolist() == [NOT_FINITE, NOT_FINITE, 1]
    assert (inputs.history[0] == -7).sum() == 12 - 4
    assert not out.logprobs.isnan().any()
    assert not out.top_logprobs.isnan().any()


@pytest.mark.parametrize("temperature", [1e-8, 1e-6, 1e-30])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = [[0.0, 1.0, 1.0 - 1e-6, 1.0]]
    for seed in range(20):
        assert tokens(logits, temperature=temperature, seed=seed) == [1]


def test_penalties_count_prompt_and_output_as_documented() -> None:
    history = (0, 1, 2, 2)  # prompt 0 1, output 2 2
    logits = torch.tensor([[2.0, -1.0, 2.0, 0.0]])

    def after(**penalties: float) -> Tensor:
        from headrace.kernels.sample.constrain import constrain

        _, inputs = run(logits, history=history, **penalties)
        return constrain(logits, inputs, 1)[0]

    torch.testing.assert_close(after(repetition_penalty=2.0), torch.tensor([1.0, -2.0, 1.0, 0.0]))
    torch.testing.assert_close(after(presence_penalty=0.5), torch.tensor([2.0, -1.0, 1.5, 0.0]))
    torch.testing.assert_close(after(frequency_penalty=0.5), torch.tensor([2.0, -1.0, 1.0, 0.0]))
    # A tie is broken by the penalty on what was generated, not on what was asked.
    assert tokens(logits, history=history, presence_penalty=0.1) == [0]


def test_top_k_keeps_exactly_k_and_ties_go_to_the_lower_id() -> None:
    scaled = torch.tensor([0.0, -1.0, -1.0, 0.0, -1.0])
    assert truncate(scaled, 3, 0, 1).isfinite().tolist() == [True, True, False, True, False]
    assert truncate(scaled, 0, 0, 1) is scaled
    assert truncate(scaled, 9, 0, 1) is scaled


def test_min_p_is_relative_to_the_best() -> None:
    scaled = torch.tensor([0.5, 0.26, 0.24, 1.0]).log()
    assert truncate(scaled, 0, 0.25, 1).isfinite().tolist() == [True, True, False, True]
    assert truncate(scaled, 0, 1.0, 1).isfinite().tolist() == [False, False, False, True]


def test_top_p_follows_top_k_and_min_p() -> None:
    p = torch.tensor([0.4, 0.3, 0.2, 0.1])
    scaled = (p / 0.4).log()
    assert truncate(scaled, 0, 0, 0.65).isfinite().tolist() == [True, True, False, False]
    assert truncate(scaled, 0, 0, 0.75).isfinite().tolist() == [True, True, True, False]
    # Of the two that are left, 0.4 / 0.7 is 0.571.
    assert truncate(scaled, 2, 0, 0.55).isfinite().tolist() == [True, False, False, False]
    assert truncate(scaled, 0, 0.7, 0.55).isfinite().tolist() == [True, False, False, False]
    assert truncate(scaled, 0, 0, 1e-9).isfinite().tolist() == [True, False, False, False]


def test_philox_known_answers() -> None:
    """From the Random123 distribution, kat_vectors."""
    ones = 0xFFFFFFFF
    cases = [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([ones] * 4, [ones] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ]
    for counter, key, expected in cases:
        words = philox([torch.tensor(c) for c in counter], [torch.tensor(k) for k in key])
        assert [int(word) for word in words] == expected


def test_gumbel_by_its_formula() -> None:
    seed, position = -5, 77  # the bits of 2^64 - 5
    noise = gumbel(torch.tensor([seed]), torch.tensor([position]), 10)[0]
    key = [torch.tensor((seed + 2**64) & 0xFFFFFFFF), torch.tensor((seed + 2**64) >> 32)]
    for token in range(10):
        words = philox([torch.tensor(v) for v in (token // 4, position, 0, 0)], key)
        u = (float(words[token % 4]) + 0.5) / 2**32
        assert float(noise[token]) == pytest.approx(-np.log(-np.log1p(-u)), rel=1e-5, abs=1e-6)
    assert noise.min() > -2.82
    assert noise.max() < 22.89


def test_noise_differs_by_seed_and_position() -> None:
    noise = gumbel(torch.tensor([1, 1, 2, 1 << 40]), torch.tensor([5, 6, 5, 5]), 64)
    assert len({row.numpy().tobytes() for row in noise}) == 4


def test_sampled_tokens_follow_the_softmax() -> None:
    """Chi-square over 4,000 positions; the limit is the 99.9th percentile for 4 degrees of freedom."""
    p, count = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05]), 4000
    out, _ = run(
        (2 * p.log()).expand(count, -1), temperature=2.0, seed=11, position=list(range(count)), num_logprobs=-1
    )
    seen = torch.bincount(out.tokens.long(), minlength=5)
    chi = ((seen - count * p) ** 2 / (count * p)).sum()
    assert chi < 18.5


def test_sampled_tokens_respect_the_truncation() -> None:
    count = 300
    logits = torch.zeros(count, 50)
    out, _ = run(logits, temperature=1.0, top_k=3, seed=list(range(count)))
    assert set(out.tokens.tolist()) == {0, 1, 2}
    out, _ = run(logits, temperature=1.0, top_p=0.09, seed=list(range(count)))
    assert set(out.tokens.tolist()) == {0, 1, 2, 3, 4}


def test_the_same_seed_and_position_give_the_same_token_in_every_batch() -> None:
    logits = torch.randn(6, 200, generator=torch.Generator().manual_seed(0))
    logits[4] = logits[1]
    seeds = [1, 2, 3, 4, 2, 6]
    drawn = tokens(logits, temperature=1.0, seed=seeds)
    assert drawn[1] == drawn[4]
    assert drawn == [tokens(logits[r : r + 1], temperature=1.0, seed=seeds[r])[0] for r in range(6)]


def test_padding_is_ignored() -> None:
    out, inputs = run([[0.0, 1.0]], padding=3, num_logprobs=1)
    assert out.tokens.shape == (4,)
    assert out.tokens[0] == 1
    assert out.top_ids.shape == (4, 1)
    assert (inputs.history[1:, 4] == -7).all()


@pytest.mark.parametrize("num_logprobs", [-1, 0, 3])
def test_no_rows(num_logprobs: int) -> None:
    out, _ = run(torch.zeros(0, 5), num_logprobs=num_logprobs)
    assert out.tokens.shape == (0,)
    assert out.top_ids.shape == (0, max(num_logprobs, 0))
