"""`mla` against attention over expanded keys and values, written out in float64, and against transformers'
DeepSeek-V3."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.kernels import paged, random
from headrace.kernels.mla.generate import generate
from headrace.kernels.mla.reference import mla
from headrace.kernels.ops import Batch

CPU = torch.device("cpu")
Tensor = torch.Tensor


def _rows(batch: Batch, latents: Tensor, scales: Tensor | None, sequence: int) -> Tensor:
    """float64 [context, R + r] of one sequence."""
    places = torch.arange(int(batch.context_lens[sequence]))
    block = batch.block_tables[sequence].long()[places // latents.shape[1]]
    rows = latents[block, places % latents.shape[1]].double()
    return rows if scales is None else rows * scales[block, places % latents.shape[1]].double()[:, None]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("seed", range(10))
def test_is_attention_over_expanded_keys_and_values(seed: int, dtype: str) -> None:
    """The absorbed form equals heads with keys W_k c and values W_v c, whatever the matrices are."""
    rng = np.random.default_rng(seed)
    given = generate(rng, CPU, dtype)
    batch, latents, rank = given["batch"], given["latents"], given["rank"]
    width = latents.shape[2]
    heads, nope, size = given["q"].shape[1] // width, 12, 10
    to_key, to_value = (random.normal(rng, heads, n, rank, device=CPU).double() / rank**0.5 for n in (nope, size))
    plain = random.normal(rng, len(given["q"]), heads, nope, device=CPU).double()
    rotated = given["q"].view(-1, heads, width)[..., rank:].double()
    absorbed = torch.cat([torch.einsum("thn,hnr->thr", plain, to_key), rotated], -1)
    q = absorbed.flatten(1).float()
    mean = mla(q, batch, latents, given["scales"], rank, given["scale"]).double().view(-1, heads, rank)
    found = torch.einsum("thr,hsr->ths", mean, to_value)
    for token, (sequence, position) in enumerate(zip(batch.token_seq.tolist(), batch.positions.tolist(), strict=True)):
        rows = _rows(batch, latents, given["scales"], sequence)[: position + 1]
        keys = torch.cat(
            [torch.einsum("cr,hnr->hcn", rows[:, :rank], to_key), rows[:, rank:].expand(heads, -1, -1)], -1
        )
        query = torch.cat([plain[token], rotated[token]], -1)
        weight = (torch.einsum("hcn,hn->hc", keys, query) * given["scale"]).softmax(-1)
        want = torch.einsum("hc,cr,hsr->hs", weight, rows[:, :rank], to_value)
        torch.testing.assert_close(found[token], want, rtol=1e-4, atol=1e-4)


def test_alone_and_in_chunks_the_bits_are_the_same() -> None:
    from dataclasses import replace

    rng = np.random.default_rng(3)
    shape = random.Shape((30, 1), (50, 7), 16)
    batch, latents = random.batch(rng, shape, CPU), random.normal(rng, 20, 16, 48, device=CPU)
    q = random.normal(rng, 31, 3 * 48, device=CPU)
    whole = mla(q, batch, latents, None, 40, 0.2)
    for first, last in ((0, 7), (7, 29), (29, 30)):
        part = replace(
            batch, sizes=torch.tensor([last - first, 1, 0], dtype=torch.int32), positions=batch.positions[first:last],
            token_seq=torch.zeros(last - first, dtype=torch.int32), block_tables=batch.block_tables[:1],
            query_start=torch.tensor([0, last - first], dtype=torch.int32),
            context_lens=torch.tensor([50 + last], dtype=torch.int32),
        )  # fmt: skip
        assert torch.equal(mla(q[first:last], part, latents, None, 40, 0.2), whole[first:last])


def test_agrees_with_deepseek_v3_of_transformers() -> None:
    """One layer's attention in prefill: projections and rotation theirs, attention ours over the latents it caches."""
    v3 = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config

    config = DeepseekV3Config(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=32,
        qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=12, num_hidden_layers=1, max_position_embeddings=64,
        attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    layer, tokens = v3.DeepseekV3Attention(config, 0).eval(), 21
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    x = torch.randn(1, tokens, 64)
    cos, sin = v3.DeepseekV3RotaryEmbedding(config)(x, torch.arange(tokens)[None])
    causal = torch.full((tokens, tokens), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        want = layer(x, position_embeddings=(cos, sin), attention_mask=causal)[0][0]
        query = layer.q_b_proj(layer.q_a_layernorm(layer.q_a_proj(x))).view(1, tokens, 4, 24).transpose(1, 2)
        latent, key = layer.kv_a_proj_with_mqa(x).split([32, 8], -1)
        turn = v3.apply_rotary_pos_emb_interleave if config.rope_interleave else v3.apply_rotary_pos_emb
        rotated, key = turn(query[..., 16:], key[:, None], cos, sin)
        row = torch.cat([layer.kv_a_layernorm(latent), key[:, 0]], -1)[0]
        to_key, to_value = layer.kv_b_proj.weight.view(4, 28, 32).split([16, 12], 1)
        q = torch.cat([torch.einsum("bhtn,hnr->thr", query[..., :16], to_key), rotated[0].transpose(0, 1)], -1)
        batch = random.batch(np.random.default_rng(0), random.Shape((tokens,), (0,), 16), CPU)
        latents = torch.zeros(3, 16, 40)
        latents.view(-1, 40)[batch.slot_mapping.long()] = row
        mean = mla(q.flatten(1), batch, latents, None, 32, layer.scaling).view(tokens, 4, 32)
        found = layer.o_proj(torch.einsum("thr,hsr->ths", mean, to_value).flatten(1))
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)


def test_a_quantized_cache_is_read_by_its_scales() -> None:
    rng = np.random.default_rng(0)
    shape = random.Shape((4,), (20,), 16)
    batch, rows = random.batch(rng, shape, CPU), random.normal(rng, 3, 16, 24, device=CPU)
    scales = rows.abs().amax(-1) / 127
    codes = (rows / scales[..., None]).round().to(torch.int8)
    q = random.normal(rng, 4, 2 * 24, device=CPU)
    plain = mla(q, batch, codes.float() * scales[..., None], None, 16, 0.2)
    assert torch.equal(mla(q, batch, codes, scales, 16, 0.2), plain)
    assert paged.DTYPES["int8"] == codes.dtype
