"""Tier 5: a tiny model end to end, against the same model on the references. Tier 7: the same bits in any batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from headrace.conformance.operators_tier import need_arithmetic, need_operator
from headrace.conformance.seeded_drafts import PlacedDrafts, SeededDrafts
from headrace.conformance.tiers import tier
from headrace.conformance.tiny import VOCAB, Answer, Serving, TinyModel, agreeing, requests
from headrace.conformance.tiny_head import HeadDrafts, HeadServing, HeldDrafts
from headrace.kernels.registry import DRAFTING, HEAD_DRAFTING, Missing
from headrace.platforms.interface import Device
from headrace.platforms.torch_device import TorchDevice
from headrace.types import Capabilities, Request

__all__ = ["DeterminismTier", "ModelTier"]

_CONSTRAINED = ("r1", "r3", "r4", "r7")
_PLAIN = Capabilities(frozenset({"float32"}), frozenset({"float32"}))


def _few_tokens(count: int, output: int, nth: int) -> list[Request]:
    """Sampled requests; each n-th one has three tokens to choose from, so that some drafts are right."""
    return [
        replace(one, params=replace(one.params, allowed_token_ids=None if (at + 1) % nth else (7, 8, 9)))
        for at, one in enumerate(requests(count, 0.7, output))
    ]


class _Shared:
    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, device: Device) -> TinyModel:
        return TinyModel(device)

    @pytest.fixture(scope="class")
    @classmethod
    def wanted(cls, device: Device) -> Iterator[dict[str, Answer]]:
        """The answers of the references, on torch's CPU device."""
        plain = TorchDevice(torch.device("cpu"), _PLAIN)
        yield Serving(plain, TinyModel(plain, device.capabilities())).run(requests(9))
        plain.close()


@tier("model")
class ModelTier(_Shared):
    def test_greedy_answers_are_the_references(
        self, device: Device, model: TinyModel, wanted: dict[str, Answer]
    ) -> None:
        """Tokens agree except for near-ties, and logprobs are within 0.02 as far as the tokens agree."""
        need_arithmetic(device)
        found = Serving(device, model).run(requests(9))
        same = [agreeing(found[name], answer) == len(answer[0]) for name, answer in wanted.items()]
        assert sum(same) >= len(wanted) - 1

    def test_every_request_gets_all_its_tokens(self, device: Device, model: TinyModel) -> None:
        found = Serving(device, model, budget=16, seqs=4).run(requests(9))
        assert {name: len(tokens) for name, (tokens, _) in found.items()} == {f"r{i}": 8 for i in range(9)}

    def test_a_crowded_cache_preempts_and_loses_nothing(self, device: Device, model: TinyModel) -> None:
        size = device.capabilities().block_sizes[0]
        serving = Serving(device, model, blocks=-(-90 // size) + 3)
        found = serving.run(requests(6, output=20))
        assert all(len(tokens) == 20 for tokens, _ in found.values())
        stats = serving.scheduler.stats()
        assert stats.preemptions > 0 or size > 16
        assert stats.blocks_held == 0

    def test_grammars_decide_beside_free_requests(self, device: Device, model: TinyModel) -> None:
        """Steps with constrained rows run as two executables; every token is one that its mask allows."""
        serving = Serving(device, model)
        found = serving.run(requests(9, 1.0), _CONSTRAINED)
        assert not serving.errors
        assert all(len(tokens) == 8 for tokens, _ in found.values())


@tier("determinism")
class DeterminismTier(_Shared):
    def test_alone_is_batched_is_chunked_is_warm(self, device: Device, model: TinyModel) -> None:
        """Token ids and logprobs have the same bits; greedy and sampled requests alternate."""
        need_arithmetic(device)
        if not device.capabilities().deterministic:
            pytest.skip("determinism is not declared")
        work = [pair[i % 2] for i, pair in enumerate(zip(requests(8), requests(8, 1.0), strict=True))]
        serving = Serving(device, model)
        batched = serving.run(work)
        assert serving.run(work) == batched, "warm"
        assert Serving(device, model, budget=9, seqs=3).run(work) == batched, "chunked"
        for request in work[:3]:
            assert Serving(device, model).run([request])[request.id] == batched[request.id], "alone"

    def test_constrained_alone_is_batched_is_chunked_is_warm(self, device: Device, model: TinyModel) -> None:
        """Steps in two parts give the bits of steps in one; forced tokens are the same in any batch."""
        need_arithmetic(device)
        if not device.capabilities().deterministic:
            pytest.skip("determinism is not declared")
        work = requests(8, 1.0, output=12)
        serving = Serving(device, model)
        batched = serving.run(work, _CONSTRAINED)
        assert serving.run(work, _CONSTRAINED) == batched, "warm"
        assert Serving(device, model, budget=9, seqs=3).run(work, _CONSTRAINED) == batched, "chunked"
        for request in work[:4]:
            assert Serving(device, model).run([request], _CONSTRAINED)[request.id] == batched[request.id], "alone"

    @pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
    def test_drafts_change_no_bit(self, device: Device, model: TinyModel, right: float) -> None:
        """Speculative decoding: rows of drafts are sampled with the token before them, and only equal ones count."""
        need_arithmetic(device)
        if not device.capabilities().deterministic:
            pytest.skip("determinism is not declared")
        work = [pair[i % 2] for i, pair in enumerate(zip(requests(6, 0.0, 12), requests(6, 1.0, 12), strict=True))]
        wanted = Serving(device, model).run(work)
        answers = {name: tokens for name, (tokens, _) in wanted.items()}
        drafts = SeededDrafts(answers, right, eager=0.8, seed=1, vocab=VOCAB)
        assert Serving(device, model, drafts=drafts).run(work) == wanted
        assert drafts.drafted > 0
        assert drafts.accepted == {0.0: 0, 1.0: drafts.drafted}.get(right, drafts.accepted)

    @pytest.mark.parametrize("constrained", [(), ("r1", "r4")])
    def test_drafts_of_the_device_change_no_bit(
        self, device: Device, model: TinyModel, constrained: tuple[str, ...]
    ) -> None:
        """Steps that are launched before it is known how many drafts of the last one are right; in two parts if other
        requests are constrained."""
        need_arithmetic(device)
        if not device.capabilities().deterministic:
            pytest.skip("determinism is not declared")
        for spec in DRAFTING:
            need_operator(device, spec)
        work = _few_tokens(6, 30, 2)
        wanted = Serving(device, model).run(work, constrained)
        drafts = PlacedDrafts(eager=0.9, seed=1)
        assert Serving(device, model, blocks=24, drafts=drafts, placed=8).run(work, constrained) == wanted
        assert drafts.ahead > 0
        assert 0 < drafts.accepted < drafts.drafted

    def test_drafts_of_a_head_change_no_bit(self, device: Device, model: TinyModel) -> None:
        """The same with a head, whose passes are launched between two steps and follow the last right draft. Its drafts
        are those that it makes if every step waits for the one before it: as many of them are accepted."""
        need_arithmetic(device)
        if not device.capabilities().deterministic:
            pytest.skip("determinism is not declared")
        for spec in HEAD_DRAFTING:
            need_operator(device, spec)
        for name in ("store_features", "load_features", "take_rows"):
            if isinstance(getattr(model.ops, name), Missing):
                pytest.skip(
                    f"no head: the optional operator {name} is not declared, and no reference takes the tensors"
                )
        work = _few_tokens(4, 12, 1)
        wanted = Serving(device, model).run(work)
        held, drafts = HeldDrafts(most=3), HeadDrafts(eager=0.9, seed=1, most=3)
        assert HeadServing(device, held).run(work) == wanted
        assert HeadServing(device, drafts, blocks=24, placed=3).run(work) == wanted
        assert held.drafter.failures == drafts.drafter.failures == 0
        for name, known, planned, made, accepted in drafts.rounds:
            answer, guesses = wanted[name][0][known:], held.found.get((name, known), [])
            right = [a == b for a, b in zip(answer, guesses[:planned], strict=False)]
            assert (made, accepted) == (planned, (*right, False).index(False)), f"{name} after {known} tokens"
        assert drafts.ahead > 0
        assert 0 < drafts.accepted < drafts.drafted

    def test_seeds_decide_the_draw(self, device: Device, model: TinyModel) -> None:
        need_arithmetic(device)
        first, second = (Serving(device, model).run(requests(6, 1.5)) for _ in range(2))
        assert first == second
        assert len({tuple(tokens) for tokens, _ in first.values()}) == 6
