"""Each head against a plain reading of its definition: one place, one draft and one attention at a time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from training_cases import IDS, MASK, METHODS, SHAPE, example, make

from headrace.training.training_head import Draws, Example, cross_entropy

Tensor = torch.Tensor
Entry = tuple[int, Tensor]
"""A position and the input of the attention there."""


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean() + SHAPE.eps) * weight


def turned(x: Tensor, position: int) -> Tensor:
    """One head [d] in NeoX halves."""
    half = SHAPE.head_dim // 2
    out = torch.empty_like(x)
    for at in range(half):
        angle = position * SHAPE.rope.theta ** (-2 * at / SHAPE.head_dim)
        cos, sin = math.cos(angle), math.sin(angle)
        out[at] = x[at] * cos - x[at + half] * sin
        out[at + half] = x[at + half] * cos + x[at] * sin
    return out


def attention(part: Any, x: Tensor, position: int, entries: list[Entry]) -> Tensor:
    """One row that attends to `entries`."""
    size, group, out = SHAPE.head_dim, SHAPE.q_heads // SHAPE.kv_heads, []

    def head(matrix: Any, value: Tensor, number: int, weight: Any, at: int | None) -> Tensor:
        found = (matrix.weight @ value)[number * size : (number + 1) * size]
        found = found if weight is None or at is None else norm(found, weight.weight)
        return found if at is None else turned(found, at)

    for number in range(SHAPE.q_heads):
        q = head(part.q_proj, x, number, part.q_norm, position)
        keys = [head(part.k_proj, value, number // group, part.k_norm, at) for at, value in entries]
        values = [head(part.v_proj, value, number // group, None, None) for _, value in entries]
        shares = torch.softmax(torch.stack([q @ key for key in keys]) / math.sqrt(size), 0)
        out.append(sum(share * value for share, value in zip(shares, values, strict=True)))
    return part.o_proj.weight @ torch.cat(out)


def mlp(part: Any, x: Tensor) -> Tensor:
    gate, up = part.gate_proj.weight @ x, part.up_proj.weight @ x
    return part.down_proj.weight @ (gate * torch.sigmoid(gate) * up)


def eagle3_draft(head: Any, one: Example, place: int, drafts: int) -> list[Tensor]:
    """The logits of drafts of tokens place + 2, place + 3, …, if all between are as in the answer."""
    layer, embedding = head.midlayer, head.tables.embedding

    def entry(at: int, token: int, g: Tensor) -> Entry:
        embedded = norm(embedding[token], layer.input_layernorm.weight)
        return at, torch.cat([embedded, norm(g, layer.hidden_norm.weight)])

    fused = [head.fc.weight @ feature for feature in one.features]
    entries = [entry(at, one.tokens[at + 1], fused[at]) for at in range(place + 1)]
    g, found = fused[place], []
    for step in range(drafts):
        if step:
            entries.append(entry(place + step, one.tokens[place + 1 + step], g))
        u = g + attention(layer.self_attn, entries[-1][1], place + step, entries)
        u = u + mlp(layer.mlp, norm(u, layer.post_attention_layernorm.weight))
        found.append(head.lm_head.weight @ norm(u, head.norm.weight))
        g = u
    return found


def mtp_draft(head: Any, one: Example, place: int, drafts: int) -> list[Tensor]:
    layer, embedding = head.block, head.tables.embedding

    def joined(at: int, token: int, h: Tensor) -> Tensor:
        embedded = embedding[token] * (at > 0)
        return head.eh_proj.weight @ torch.cat([norm(embedded, head.enorm.weight), norm(h, head.hnorm.weight)])

    rows = [joined(at, one.tokens[at + 1], one.final[at]) for at in range(place + 1)]
    entries = [(at, norm(x, layer.input_layernorm.weight)) for at, x in enumerate(rows)]
    x, h, found = rows[place], one.final[place], []
    for step in range(drafts):
        if step:
            x = joined(place + step, one.tokens[place + 1 + step], h)
            entries.append((place + step, norm(x, layer.input_layernorm.weight)))
        u = x + attention(layer.self_attn, entries[-1][1], place + step, entries)
        u = u + mlp(layer.mlp, norm(u, layer.post_attention_layernorm.weight))
        h = norm(u, head.shared_head.norm.weight)
        found.append(head.tables.head @ h)
    return found


def dflash_block(head: Any, one: Example, anchor: int) -> list[Tensor]:
    context = [norm(head.fc.weight @ feature, head.hidden_norm.weight) for feature in one.features[:anchor]]
    tokens = [int(one.tokens[anchor]), *[MASK] * head.drafts]
    rows = [head.tables.embedding[token] for token in tokens]
    for layer in head.layers:
        normed = [norm(x, layer.input_layernorm.weight) for x in rows]
        entries = [*enumerate(context), *[(anchor + at, x) for at, x in enumerate(normed)]]
        mixed = [x + attention(layer.self_attn, normed[at], anchor + at, entries) for at, x in enumerate(rows)]
        rows = [x + mlp(layer.mlp, norm(x, layer.post_attention_layernorm.weight)) for x in mixed]
    output = head.tables.head if head.settings().get("draft_vocab_size") is None else head.lm_head.weight
    return [output @ norm(x, head.norm.weight) for x in rows[1:]]


@pytest.mark.parametrize("method", ["eagle3", "mtp"])
@pytest.mark.parametrize("prompt", [1, 5])
def test_chains(method: str, prompt: int) -> None:
    head, draft = make(method, spread=0.3), {"eagle3": eagle3_draft, "mtp": mtp_draft}[method]
    one = example(head, prompt=prompt)
    with torch.no_grad():
        found = head.chain(one, 3)
        for row, place in enumerate(range(prompt - 1, len(one.tokens) - 2)):
            steps = min(3, len(one.tokens) - 2 - place)
            for step, wanted in enumerate(draft(head, one, place, steps)):
                torch.testing.assert_close(found[step][row], wanted, rtol=1e-3, atol=1e-4)
            assert all(len(found[step]) <= row for step in range(steps, 3))


@pytest.mark.parametrize("method", ["dflash", "dflash-all"])
def test_blocks(method: str) -> None:
    head = make(method, drafts=4, spread=0.3)
    one = example(head)
    anchors = torch.tensor([4, 9, 5])
    with torch.no_grad():
        found = head.logits(head.blocks(one, anchors))
        for row, anchor in enumerate(anchors.tolist()):
            wanted = torch.stack(dflash_block(head, one, anchor))
            torch.testing.assert_close(found[row], wanted, rtol=1e-3, atol=1e-4)


def test_the_loss_of_a_chain_is_that_of_its_steps() -> None:
    """0.8^step times the cross-entropy over the draft vocabulary, where the sample is in it."""
    head = make("eagle3", spread=0.3)
    one = example(head)
    with torch.no_grad():
        total, weights = head.loss(one, torch.Generator())
        wanted = weight = 0.0
        for place in range(one.prompt - 1, len(one.tokens) - 2):
            for step, logits in enumerate(eagle3_draft(head, one, place, min(3, len(one.tokens) - 2 - place))):
                if int(one.tokens[place + 2 + step]) in IDS.tolist():
                    target = torch.softmax(head.tables.head[IDS] @ one.final[place + 1 + step], 0)
                    wanted -= 0.8**step * float(target @ torch.log_softmax(logits, 0))
                    weight += 0.8**step
    assert float(total) == pytest.approx(wanted, rel=1e-4)
    assert weights == pytest.approx(weight)


@pytest.mark.parametrize("method", ["dflash", "dflash-all"])
def test_the_loss_of_blocks_decays_with_the_position(method: str) -> None:
    """And counts where the sample is in the draft vocabulary."""
    head = make(method, drafts=4, spread=0.3)
    ids = IDS if method == "dflash" else torch.arange(SHAPE.vocab)
    one = example(head, count=12, prompt=4)
    with torch.no_grad():
        total, weights = head.loss(one, torch.Generator().manual_seed(0))
        wanted = weight = 0.0
        for anchor in range(4, 8):
            for step, logits in enumerate(dflash_block(head, one, anchor)):
                share = math.exp(-step / 4) * (int(one.tokens[anchor + 1 + step]) in ids.tolist())
                target = torch.softmax(head.tables.head[ids] @ one.final[anchor + step], 0)
                wanted -= share * float(target @ torch.log_softmax(logits, 0))
                weight += share
    assert float(total) == pytest.approx(wanted, rel=1e-4)
    assert weights == pytest.approx(weight)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("method", METHODS)
def test_agreement_is_that_of_the_drafts(method: str, temperature: float) -> None:
    """With the draw of the drafted token's position."""
    head = make(method, spread=0.3)
    one = example(head, count=20, temperature=temperature)
    drafts = {"eagle3": eagle3_draft, "mtp": mtp_draft}.get(method)
    draws = Draws(one, IDS if method in ("eagle3", "dflash") else None, SHAPE.vocab)
    with torch.no_grad():
        found = head.agreement(one)
        rows = []
        for place in range(3, 16) if drafts else range(4, 17):
            logits = dflash_block(head, one, place) if drafts is None else drafts(head, one, place, 3)
            first = place + 1 if drafts is None else place + 2
            rows.append(
                [
                    int(draws.pick(row[None], torch.tensor([first + at]))) == int(one.tokens[first + at])
                    for at, row in enumerate(logits)
                ]
            )
    assert found.tolist() == rows


def test_cross_entropy_is_least_at_the_target() -> None:
    target = torch.tensor([[0.0, 1.0, 3.0]])
    assert float(cross_entropy(target, target)) < float(cross_entropy(torch.tensor([[0.0, 3.0, 1.0]]), target))
