"""The steps of an engine before its first request: they compile, record and bind what is made on first use."""

from __future__ import annotations

from headrace.engine.plans import dummy_plan, placed_plan
from headrace.engine.runner import RunnerConfig
from headrace.types import StepPlan

__all__ = ["first_plans"]


def first_plans(config: RunnerConfig, static_shapes: bool) -> list[StepPlan]:
    """The steps to launch before the first request, so that none waits for what is made on first use: of one
    token, and if the device makes drafts, those with few rows and with more than there are sequences. With static
    shapes there are too many to make them all."""
    drafts, seqs = min(config.drafts, config.max_model_len - 1), config.max_num_seqs
    if drafts < 1 or static_shapes:
        return [dummy_plan()]
    many = min(seqs, 1 + seqs // (1 + drafts), config.max_num_batched_tokens // (1 + drafts))
    size = config.layout.block_size
    return [dummy_plan(), *(placed_plan(*each, size) for each in ((1, 0), (many, drafts)) if each[0])]
