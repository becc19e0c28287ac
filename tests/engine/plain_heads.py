"""Draft heads as their definitions say, in plain torch: no cache, no paging, every entry from the beginning each time.

Also tiny random checkpoints of them in the layouts that are published.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

Tensor = torch.Tensor
Tensors = dict[str, Tensor]
H, HEADS, KV, DIM, FFN, VOCAB, DRAFT_VOCAB = 64, 4, 2, 16, 96, 260, 150
EPS, THETA = 1e-6, 10000.0


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def rotate(x: Tensor) -> Tensor:
    """[N, heads, DIM] at positions 0, 1, …"""
    inverse = THETA ** (-torch.arange(0, DIM, 2) / DIM)
    angles = torch.outer(torch.arange(len(x)).float(), inverse)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def layer(w: Tensors, x: Tensor, residual: Tensor, prefix: str) -> Tensor:
    """A Llama layer over entries 0, 1, …: `x` is what the products of queries, keys and values take. The residual sum
    after it."""
    count = len(x)
    q, k, v = (x @ w[f"{prefix}self_attn.{n}_proj.weight"].T for n in "qkv")
    q, k = rotate(q.view(count, HEADS, DIM)), rotate(k.view(count, KV, DIM))
    k, v = (part.repeat_interleave(HEADS // KV, 1) for part in (k, v.view(count, KV, DIM)))
    scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(DIM)
    scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
    out = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(count, HEADS * DIM)
    residual = residual + out @ w[f"{prefix}self_attn.o_proj.weight"].T
    x = rms(residual, w[f"{prefix}post_attention_layernorm.weight"])
    gate, up = (x @ w[f"{prefix}mlp.{n}_proj.weight"].T for n in ("gate", "up"))
    return residual + (functional.silu(gate) * up) @ w[f"{prefix}mlp.down_proj.weight"].T


@dataclass
class Plain:
    """A head: `features` [N, H] of all tokens from hidden states, and one round of it."""

    features: Callable[[list[int]], Tensor]
    entries: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    """(features [N, H], embeddings [N, H]) → (logits [N, VOCAB], what the next entry takes as features [N, H])"""
    embedding: Tensor
    zero_first: bool = False

    @torch.no_grad()
    def draft(self, tokens: Sequence[int], count: int) -> list[int]:
        """The most likely tokens after these."""
        tokens = list(tokens)
        features = self.features(tokens)[:-1]
        drafts = list[int]()
        for _ in range(count):
            embedded = self.embedding[torch.tensor(tokens[1:] + drafts)].clone()
            if self.zero_first:
                embedded[0] = 0
            logits, hidden = self.entries(features, embedded)
            drafts.append(int(logits[-1].argmax()))
            features = torch.cat([features, hidden[-1:]])
        return drafts


def eagle3(target: Any, w: Tensors, points: Sequence[int], **settings: bool) -> Plain:
    """Settings as in config.json, of flavour A. `target`: a transformers model."""
    table = w.get("embed_tokens.weight", target.get_input_embeddings().weight.detach())
    prefix = "midlayer." if "midlayer.hidden_norm.weight" in w else "layers.0."

    def features(tokens: list[int]) -> Tensor:
        states = target(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        taken = [states[point][0] for point in points]
        if settings.get("fc_norm"):
            taken = [rms(state, w[f"fc_norm.{at}.weight"]) for at, state in enumerate(taken)]
        return torch.cat(taken, -1) @ w["fc.weight"].T

    def entries(g: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        normed = rms(g, w[f"{prefix}hidden_norm.weight"])
        x = torch.cat([rms(embedded, w[f"{prefix}input_layernorm.weight"]), normed], -1)
        u = layer(w, x, normed if settings.get("norm_before_residual") else g, prefix)
        out = rms(u, w["norm.weight"])
        logits = out @ w["lm_head.weight"].T
        if "d2t" in w:
            wide = torch.full((len(g), VOCAB), -torch.inf)
            wide[:, torch.arange(len(w["d2t"])) + w["d2t"]] = logits
            logits = wide
        return logits, out if settings.get("norm_output") else u

    return Plain(features, entries, table)


def mtp(target: Any, w: Tensors, names: dict[str, str], hidden_first: bool, zero: bool) -> Plain:
    """`names`: of `enorm`, `hnorm`, `projection`, `norm` and `layer`."""

    def features(tokens: list[int]) -> Tensor:
        found: Tensor = target(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1][0]
        return found

    def entries(h: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        parts = [rms(embedded, w[names["enorm"]]), rms(h, w[names["hnorm"]])]
        s = torch.cat(parts[::-1] if hidden_first else parts, -1) @ w[names["projection"]].T
        u = layer(w, rms(s, w[f"{names['layer']}input_layernorm.weight"]), s, names["layer"])
        out = rms(u, w[names["norm"]])
        return out @ target.get_output_embeddings().weight.detach().T, out

    return Plain(features, entries, target.get_input_embeddings().weight.detach(), zero)


def _random(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def make(*shape: int) -> Tensor:
        drawn = torch.randn(*shape, generator=generator)
        return 1 + 0.2 * drawn if len(shape) == 1 else drawn * 1.5 / shape[-1] ** 0.5

    return make


def layer_tensors(make: Callable[..., Tensor], prefix: str, width: int = H) -> Tensors:
    rows = {"q": HEADS * DIM, "k": KV * DIM, "v": KV * DIM}
    found = {f"{prefix}self_attn.{name}_proj.weight": make(count, width) for name, count in rows.items()}
    found[f"{prefix}self_attn.o_proj.weight"] = make(H, HEADS * DIM)
    found |= {f"{prefix}mlp.{name}_proj.weight": make(FFN, H) for name in ("gate", "up")}
    found[f"{prefix}mlp.down_proj.weight"] = make(H, FFN)
    norms = ("input_layernorm", "post_attention_layernorm")
    return found | {f"{prefix}{name}.weight": make(H) for name in norms}


LAYER: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": H,
    "intermediate_size": FFN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "head_dim": DIM,
    "num_hidden_layers": 1,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "vocab_size": VOCAB,
    "max_position_embeddings": 32,
}


def save_eagle3(directory: Path, flavour: str, seed: int = 3, drop: Sequence[str] = (), **settings: Any) -> Tensors:
    """Flavour A (SafeAILab, SpecForge), B (`speculators`) or C (DeepSpec, with a full vocabulary), as they are
    published. `drop`: tensors that are left out."""
    make = _random(seed)
    prefix = "midlayer." if flavour == "A" else "layers.0."
    points = settings.get("eagle_aux_hidden_state_layer_ids") or settings.get("target_layer_ids") or [0, 0, 0]
    w = layer_tensors(make, prefix, 2 * H)
    w |= {f"{prefix}hidden_norm.weight": make(H), "norm.weight": make(H), "fc.weight": make(H, H * len(points))}
    w["lm_head.weight"] = make(DRAFT_VOCAB if flavour != "C" else VOCAB, H)
    config: dict[str, Any]
    if flavour != "C":
        kept = torch.sort(torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))[:DRAFT_VOCAB]).values
        w["d2t"] = kept - torch.arange(DRAFT_VOCAB)
        w["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, kept, True)
    if flavour == "A":
        config = {**LAYER, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": DRAFT_VOCAB, **settings}
    elif flavour == "B":
        w["embed_tokens.weight"] = make(VOCAB, H)
        w["verifier_norm.weight"] = make(H)
        config = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "speculators_version": "0.3.0",
            "draft_vocab_size": DRAFT_VOCAB,
            "target_hidden_size": None,
            "transformer_layer_config": LAYER,
            "speculators_config": {"algorithm": "eagle3"},
            **settings,
        }
    else:
        w["embed_tokens.weight"] = make(VOCAB, H)
        config = {**LAYER, "architectures": ["Qwen3Eagle3Model"], **settings}
    if settings.get("fc_norm"):
        w |= {f"fc_norm.{at}.weight": make(H) for at in range(len(points))}
    for name in drop:
        del w[name]
    directory.mkdir(exist_ok=True, parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in w.items()}, directory / "model.safetensors")
    return w


MTP: dict[str, dict[str, str]] = {
    "deepseek": {
        "enorm": "model.layers.3.enorm.weight",
        "hnorm": "model.layers.3.hnorm.weight",
        "projection": "model.layers.3.eh_proj.weight",
        "norm": "model.layers.3.shared_head.norm.weight",
        "layer": "model.layers.3.",
    },
    "qwen3-next": {
        "enorm": "mtp.pre_fc_norm_embedding.weight",
        "hnorm": "mtp.pre_fc_norm_hidden.weight",
        "projection": "mtp.fc.weight",
        "norm": "mtp.norm.weight",
        "layer": "mtp.layers.0.",
    },
    "mimo": {
        "enorm": "model.mtp_layers.0.token_layernorm.weight",
        "hnorm": "model.mtp_layers.0.hidden_layernorm.weight",
        "projection": "model.mtp_layers.0.input_proj.weight",
        "norm": "model.mtp_layers.0.final_layernorm.weight",
        "layer": "model.mtp_layers.0.",
    },
}


def add_mtp(directory: Path, flavour: str, seed: int = 5) -> Tensors:
    """Add a random head to a saved target of three layers."""
    make, names = _random(seed), MTP[flavour]
    w = layer_tensors(make, names["layer"])
    w |= {names[name]: make(H) for name in ("enorm", "hnorm", "norm")} | {names["projection"]: make(H, 2 * H)}
    config = json.loads((directory / "config.json").read_text())
    config["num_nextn_predict_layers"] = 1
    (directory / "config.json").write_text(json.dumps(config))
    stored = load_file(directory / "model.safetensors")
    copies = {}
    if flavour == "deepseek":
        copies = {
            "model.layers.3.embed_tokens.weight": stored["model.embed_tokens.weight"].clone(),
            "model.layers.3.shared_head.head.weight": stored["lm_head.weight"].clone(),
        }
    save_file({**stored, **w, **copies}, directory / "model.safetensors", metadata={"format": "pt"})
    return w
