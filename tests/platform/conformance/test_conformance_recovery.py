"""Donated caches and a step that fails: the kit compares the following tokens, independently of what the device
declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from broken_backends import CAPABILITIES, Sound

from headrace.conformance.faults_tier import FaultsTier
from headrace.conformance.tiny import TinyModel
from headrace.errors import PlatformError
from headrace.kernels.kv import TorchKV
from headrace.platforms.interface import KV, Executable, StepFn, Tensor
from headrace.types import Bucket, Capabilities


def take(kv: TorchKV) -> TorchKV:
    """The cache under another handle; the one given is dead."""
    if not kv.keys:
        raise PlatformError("this cache was given away")
    taken = replace(kv)
    kv.keys, kv.values = [], []
    return taken


class Donates(Sound):
    """Takes the cache with every call, as a compiler does, and promises nothing about sums."""

    def capabilities(self) -> Capabilities:
        return replace(CAPABILITIES, in_place_kv=False, deterministic=False)

    def copy_blocks(self, kv: KV, src: Sequence[int], dst: Sequence[int]) -> KV:
        return super().copy_blocks(take(kv), src, dst)

    def compile(self, step_fn: StepFn, bucket: Bucket) -> Executable:
        def call(kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
            taken = take(kv)
            return taken, self.submit(lambda: self.work(step_fn, taken, inputs)).result()

        return call

    def work(self, step_fn: StepFn, kv: KV, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return step_fn(kv, inputs)[1]


class AnswersZero(Donates):
    """After a failed step every token is 0."""

    broken = False

    def work(self, step_fn: StepFn, kv: KV, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        try:
            outputs = dict(super().work(step_fn, kv, inputs))
        except RuntimeError:
            self.broken = True
            raise
        if self.broken:
            outputs["tokens"] = outputs["tokens"] * 0
        return outputs


class KeepsTheCacheThatIsGone(Donates):
    """`alloc_kv` hands out the same memory again, which the failed step had half written, and calls it a new cache."""

    made: TorchKV | None = None

    def alloc_kv(self, layout: Any, num_blocks: int) -> KV:
        if self.made is None:
            self.made = super().alloc_kv(layout, num_blocks)
        return self.made


def check(device: Sound) -> None:
    try:
        FaultsTier().test_the_engine_survives(device, TinyModel(device), RuntimeError("an injected failure"))
    finally:
        device.close()


def test_a_donating_device_is_served_on_from_a_new_cache() -> None:
    check(Donates())


@pytest.mark.parametrize(
    ("fault", "words"), [(AnswersZero, "of .* answers have other tokens"), (KeepsTheCacheThatIsGone, None)]
)
def test_wrong_tokens_after_a_failure_are_noticed(fault: type[Sound], words: str | None) -> None:
    with pytest.raises((AssertionError, PlatformError), match=words):
        check(fault())
