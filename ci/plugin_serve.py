"""Serve a tiny model over HTTP on a platform, by the installed command, and ask it what the CPU is asked.

Usage: plugin_serve.py FOLDER PLATFORM [RANKS, default 1]. Needs nothing but what Headrace itself needs.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

PROMPTS = ["Hello", "a longer prompt that fills several blocks of the cache"]
HIDDEN, WIDE, HEADS, KV_HEADS, LAYERS, VOCAB = 32, 48, 4, 2, 2, 256
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def make_model(folder: Path) -> None:
    """A model with random float32 weights and a byte tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(1)
    kv = HIDDEN // HEADS * KV_HEADS
    matrices = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (kv, HIDDEN),
        "self_attn.v_proj": (kv, HIDDEN),
    }
    matrices |= {"self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (WIDE, HIDDEN), "mlp.up_proj": (WIDE, HIDDEN)}
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        for name, shape in {**matrices, "mlp.down_proj": (HIDDEN, WIDE)}.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    tensors = {name: torch.randn(shape, generator=generator) / shape[1] ** 0.5 for name, shape in shapes.items()}
    tensors["model.norm.weight"] = torch.ones(HIDDEN)
    for layer in range(LAYERS):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = torch.ones(HIDDEN)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    alphabet = {char: at for at, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


@contextmanager
def serving(model: Path, platform: str, ranks: int = 1) -> Iterator[str]:
    """The address of a server; it must shut down cleanly on request."""
    command = [
        str(Path(sys.executable).with_name("headrace")),
        "serve",
        str(model),
        "--platform",
        platform,
        "--port",
        "0",
    ]
    command += ["--dtype", "float32", "--threads", "1", "--kv-memory", "8Mi", "--max-num-seqs", "4"]
    command += ["--tensor-parallel-size", str(ranks)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        address = next((found[0] for line in lines if (found := re.search(r"http://127\.0\.0\.1:\d+", line))), None)
        if address is None:
            sys.exit(f"the server on {platform} ended before it was ready")
        yield address
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        if code != 0:
            sys.exit(f"the server on {platform} ended with code {code}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def complete(address: str) -> list[dict[str, Any]]:
    body = {"model": "tiny", "prompt": PROMPTS, "temperature": 0, "max_tokens": 16, "ignore_eos": True, "logprobs": 0}
    data = json.dumps(body | {"return_token_ids": True}).encode()
    request = urllib.request.Request(f"{address}/v1/completions", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return [choice["token_ids"] for choice in json.load(response)["choices"]]


def main(folder: str, platform: str, ranks: str = "1") -> None:
    model = Path(folder) / "tiny"
    make_model(model)
    answers = {}
    for name, size in ((platform, int(ranks)), ("cpu", 1)):
        with serving(model, name, size) as address:
            answers[name] = complete(address)
    assert [len(tokens) for tokens in answers["cpu"]] == [16, 16], answers
    assert answers[platform] == answers["cpu"], answers
    print(f"{platform} over {ranks} answers as the cpu does: {answers[platform]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
