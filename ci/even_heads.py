#!/usr/bin/env python3
"""The default model with an even number of heads, for two ranks: 12 query heads and 4 KV heads, where it has 9 and 3.

    python ci/even_heads.py DIRECTORY

A fourth group of heads is added whose weights are zeros, so its values are, too, and the model gives the logits that it
gave. The file is dequantised to bfloat16; serve the directory with `--quantize int4`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.hub.catalogue import resolve_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--model", default="smollm2")
    args = parser.parse_args()
    file = Path(resolve_model(args.model))
    stored = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    config, tensors = stored.config, stored.state_dict()
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    size = config.hidden_size // heads
    config.head_dim, config.num_key_value_heads = size, groups + 1
    config.num_attention_heads = heads + heads // groups
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for name, wide in model.state_dict().items():
        narrow = tensors[name]
        wide.zero_()
        wide[tuple(slice(0, count) for count in narrow.shape)] = narrow
    model.save_pretrained(args.directory)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(args.directory)


if __name__ == "__main__":
    main()
