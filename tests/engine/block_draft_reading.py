"""Block drafters read from their definition: one plain torch function, one position after the other.

It takes the tensors and settings of a checkpoint as they are published, and shares no code with the engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

Tensor = torch.Tensor
Pick = Callable[[Tensor, int], int]
"""(scores by token of the target, place in the block) → the token."""


def greedy(scores: Tensor, at: int) -> int:
    return int(scores.argmax())


class Reading:
    """A drafter beside its target's tables. `candidates`: the number of likely tokens that a correction considers."""

    def __init__(
        self,
        config: dict[str, Any],
        tensors: dict[str, Tensor],
        embedding: Tensor,
        head: Tensor,
        candidates: int = 10**9,
    ) -> None:
        layers = config.get("transformer_layer_config", config)
        self.own = {**config, **config.get("dflash_config", {})}
        self.layers, self.tensors, self.candidates = layers, tensors, candidates
        self.embedding = tensors.get("embed_tokens.weight", embedding) * self.own.get("input_embedding_scale", 1.0)
        self.head = tensors.get("lm_head.weight", head)
        self.mask = (
            tensors["mask_embedding"] if "mask_embedding" in tensors else self.embedding[self.own["mask_token_id"]]
        )
        self.dspark = "markov_rank" in self.own
        self.anchored = self.own.get("sample_from_anchor", self.dspark)
        self.rows = self.own.get("block_size", 16)

    def draft(self, features: list[Tensor], anchor: int, pick: Pick = greedy) -> tuple[list[int], list[float]]:
        """The tokens after `anchor`, and the estimate of each. `features`: [n, Ht] by capture point, of the n tokens
        before it."""
        context = self._norm(torch.cat(features, 1) @ self.tensors["fc.weight"].T, "hidden_norm.weight")
        start = len(context)
        x = torch.stack([self.embedding[anchor], *[self.mask] * (self.rows - 1)])
        for index in range(self.layers["num_hidden_layers"]):
            name = f"layers.{index}."
            normed = self._norm(x, f"{name}input_layernorm.weight")
            x = x + self._around(f"{name}attention_conv", normed, lambda y, at=index: self._attention(y, context, at))
            normed = self._norm(x, f"{name}post_attention_layernorm.weight")
            x = x + self._around(f"{name}mlp_conv", normed, lambda y, at=name: self._mlp(y, at))
        hidden = self._norm(x, "norm.weight")
        if not self.anchored:
            hidden = hidden[1:]
        assert start + self.rows < 10**6
        return self._choose(hidden, anchor, pick)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.layers["rms_norm_eps"])
        return x * scale * self.tensors[name]

    def _mlp(self, x: Tensor, name: str) -> Tensor:
        gate, up, down = (self.tensors[f"{name}mlp.{which}_proj.weight"] for which in ("gate", "up", "down"))
        return (functional.silu(x @ gate.T) * (x @ up.T)) @ down.T

    def _around(self, name: str, x: Tensor, inner: Callable[[Tensor], Tensor]) -> Tensor:
        if f"{name}.base_kernel" not in self.tensors:
            return inner(x)
        base = self.tensors[f"{name}.base_kernel"]
        _, taps, width = base.shape
        group = self.own["conv_group_size"]
        delta = (x @ self.tensors[f"{name}.kernel_projection.weight"].T).view(len(x), 2, taps, width // group)

        def convolve(y: Tensor, side: int) -> Tensor:
            out = torch.zeros_like(y)
            for row in range(len(y)):
                for tap in range(min(taps, row + 1)):
                    for channel in range(width):
                        weight = base[side, tap, channel] + delta[row, side, tap, channel // group]
                        out[row, channel] += weight * y[row - tap, channel]
            return out

        return convolve(inner(convolve(x, 0)), 1)

    def _attention(self, x: Tensor, context: Tensor, index: int) -> Tensor:
        heads, groups, size = (self.layers[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        name, start = f"layers.{index}.self_attn.", len(context)

        def project(y: Tensor, which: str, count: int, first: int) -> Tensor:
            out = (y @ self.tensors[f"{name}{which}_proj.weight"].T).view(len(y), count, size)
            if which == "v":
                return out
            return self._rotate(self._norm(out, f"{name}{which}_norm.weight"), first)

        q = project(x, "q", heads, start)
        k, v = (
            torch.cat([project(context, which, groups, 0), project(x, which, groups, start)]) for which in ("k", "v")
        )
        out = torch.zeros(len(x), heads, size)
        for row in range(len(x)):
            seen = [at for at in range(len(k)) if self._sees(start, row, at, index)]
            for head in range(heads):
                part = head // (heads // groups)
                weights = torch.softmax(k[seen, part] @ q[row, head] / math.sqrt(size), 0)
                out[row, head] = weights @ v[seen, part]
        return out.flatten(1) @ self.tensors[f"{name}o_proj.weight"].T

    def _sees(self, start: int, row: int, at: int, index: int) -> bool:
        sliding = self.layers["layer_types"][index] == "sliding_attention"
        speculators = "speculators_model_type" in self.own
        causal = sliding and not (speculators and self.own.get("sliding_window_non_causal", True))
        if causal and at > start + row:
            return False
        if not sliding:
            return True
        window = self.layers["sliding_window"]
        return at > start + row - window if causal else at >= start - window

    def _rotate(self, x: Tensor, first: int) -> Tensor:
        half = x.shape[-1] // 2
        inverse = self.layers["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.outer(torch.arange(first, first + len(x), dtype=torch.float64), inverse).float()[:, None]
        low, high = x[..., :half], x[..., half:]
        return torch.cat([low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()], -1)

    def _choose(self, hidden: Tensor, anchor: int, pick: Pick) -> tuple[list[int], list[float]]:
        logits = hidden @ self.head.T * self.own.get("output_multiplier", 1.0)
        cap = self.own.get("final_logit_softcapping")
        logits = logits if cap is None else cap * torch.tanh(logits / cap)
        before, state, tokens, odds = anchor, torch.zeros(self.own.get("markov_rank", 0)), [], []
        ids = torch.arange(len(self.head))
        targets = ids + self.tensors["d2t"] if "d2t" in self.tensors else ids
        for at, unary in enumerate(logits):
            likely = unary.topk(min(self.candidates, self.own.get("selector_top_k", 10**9), len(unary))).indices
            scores = unary.clone()
            if self.dspark:
                bias, state = self._markov(before, state, hidden[at])
                scores += bias
                odds.append(self._confidence(before, hidden[at]))
            if "selector_rank" in self.own:
                scores += self._pairs(before, hidden[at])
            wide = torch.full((len(self.embedding),), -math.inf)
            wide[targets[likely]] = scores[likely]
            before = pick(wide, at)
            tokens.append(before)
        return tokens, odds

    def _pairs(self, before: int, hidden: Tensor) -> Tensor:
        name = "candidate_selector."
        seen = self.tensors[f"{name}hidden_projection.weight"] @ hidden
        return self.tensors[f"{name}successor_codebook"] @ (self.tensors[f"{name}predecessor_codebook"][before] * seen)

    def _markov(self, before: int, state: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        name, kind = "markov_head.", self.own.get("markov_head_type", "vanilla")
        last, out = self.tensors[f"{name}markov_w1.weight"][before], self.tensors[f"{name}markov_w2.weight"]
        if kind == "gated":
            weight, bias = (self.tensors[f"{name}gate_proj.{part}"] for part in ("weight", "bias"))
            last = torch.sigmoid(weight @ torch.cat([hidden, last]) + bias) * last
        if kind == "rnn":
            weight, bias = (self.tensors[f"{name}joint_proj.{part}"] for part in ("weight", "bias"))
            gate, candidate, output = (weight @ torch.cat([state, last, hidden]) + bias).chunk(3)
            gate = torch.sigmoid(gate)
            return out @ torch.tanh(output), gate * state + (1 - gate) * torch.tanh(candidate)
        return out @ last, state

    def _confidence(self, before: int, hidden: Tensor) -> float:
        weight, bias = (self.tensors[f"confidence_head.proj.{part}"] for part in ("weight", "bias"))
        read = torch.cat([hidden, self.tensors["markov_head.markov_w1.weight"][before]])
        return float(torch.sigmoid(weight[0] @ read + bias[0]))
