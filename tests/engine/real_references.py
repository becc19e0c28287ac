"""What transformers gives for the catalogue's models: computed once, kept in `tests/data/references`, read by the tests
beside this.

`tests/data/references/make_references.py` makes the files, and checks that transformers still gives what they hold.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from headrace.checkpoints.gguf_source import GGUFSource, open_gguf

__all__ = ["LENGTHS", "PER_LENGTH", "PROMPTS", "STEPS", "STRETCHES", "TEXT_STEPS", "columns_of", "compute_logits"]
__all__ += ["compute_text", "convert", "convert_as_kept", "facts_of", "kept", "pieces", "prefixes", "windows"]

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "tests" / "data" / "references"
Arrays = dict[str, npt.NDArray[Any]]

STRETCHES = (1000, 500, 300, 200)
"""Tokens of each stretch of text whose every position is compared."""
PROMPTS = 50
"""Prefixes of the stretches, each continued greedily."""
STEPS = 8
"""Tokens of a continuation."""
TOP, COLUMNS = 8, 32
"""Logits that are kept of a row: the largest, and some that change from row to row, so that every one of the vocabulary
has its turn."""

LENGTHS, PER_LENGTH, TEXT_STEPS, TEXT_TOP = (16, 32, 48, 64, 96), 10, 32, 20
"""Of the prompts whose greedy texts are compared: tokens, prompts of each length, tokens of a text, logits kept of a
step."""


def kept(name: str) -> Arrays | None:
    """The file `name`.npz; None where there is none."""
    path = KEPT / f"{name}.npz"
    if not path.exists():
        return None
    with np.load(path) as file:
        return {key: file[key] for key in file.files}


def pieces(metadata: Any, count: int) -> list[int]:
    """Token ids of the licence's text by longest match: any split will do, as long as both sides get the same."""
    ids = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    space = "Ġ" if metadata["tokenizer.ggml.model"] == "gpt2" else "▁"
    text = " ".join((ROOT / "LICENSE").read_text().split()).replace(" ", space)
    found: list[int] = []
    at = 0
    while len(found) < count:
        length = next(length for length in range(16, 0, -1) if text[at : at + length] in ids)
        found.append(ids[text[at : at + length]])
        at = (at + length) % (len(text) - 16)
    return found


def prefixes() -> dict[int, list[int]]:
    """Prompt lengths by stretch, longest first: 50 in all, from 10 to 1,000, evenly on a logarithmic scale."""
    lengths = np.geomspace(10, max(STRETCHES), PROMPTS).round().astype(int).tolist()
    shared: dict[int, list[int]] = {index: [] for index in range(len(STRETCHES))}
    for turn, length in enumerate(reversed(lengths)):
        fitting = [index for index, size in enumerate(STRETCHES) if size >= length]
        shared[fitting[turn % len(fitting)]].append(length)
    return shared


def columns_of(first: int, rows: int, vocab: int) -> npt.NDArray[np.int64]:
    """[rows, COLUMNS]: which logits are kept of row `first` and those after it. 31 divides no vocabulary in use."""
    return np.arange(first * COLUMNS, (first + rows) * COLUMNS).reshape(rows, COLUMNS) * 31 % vocab


class _Rows:
    """Rows of logits, as far as they are kept."""

    def __init__(self) -> None:
        self.count = 0
        self.parts: list[Arrays] = []

    def add(self, logits: torch.Tensor) -> None:
        top = logits.topk(TOP)
        columns = torch.from_numpy(columns_of(self.count, len(logits), logits.shape[1]))
        part = {"top_ids": top.indices.int(), "top": top.values, "some": logits.gather(1, columns)}
        self.parts.append({key: value.numpy() for key, value in part.items()})
        self.count += len(logits)

    def arrays(self) -> Arrays:
        return {key: np.concatenate([part[key] for part in self.parts]) for key in self.parts[0]}


@torch.no_grad()
def compute_logits(path: Path, ids: list[int]) -> Arrays:
    """Of a GGUF file and the tokens of all stretches, by transformers in float32: `ids`; `spread` [stretches], the
    deviation of all
    logits; `tokens` [PROMPTS, STEPS], the continuations; and of every row (a stretch's positions, then of each of
    its prefixes
    the continuation's) `top_ids`, `top` [rows, TOP] and `some` [rows, COLUMNS].
    """
    from transformers import AutoModelForCausalLM, DynamicCache

    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    rows, spread, tokens, start = _Rows(), [], [], 0
    for index, size in enumerate(STRETCHES):
        cache = DynamicCache()  # keeps all keys of windowed layers, too: their mask is what windows them
        stretch = torch.tensor([ids[start : start + size]])
        start += size
        whole = model(stretch, past_key_values=cache, use_cache=True).logits[0]
        spread.append(float(whole.std()))
        rows.add(whole)
        for length in prefixes()[index]:  # longest first: what a continuation writes lies past the next prefix
            cache.crop(length - cache.get_seq_length())
            text, logits = [int(whole[length - 1].argmax())], []
            while len(text) < STEPS:
                logits.append(model(torch.tensor([text[-1:]]), past_key_values=cache, use_cache=True).logits[0, -1])
                text.append(int(logits[-1].argmax()))
            rows.add(torch.stack(logits))
            tokens.append(text)
    found = {
        "ids": np.array(ids, np.int32),
        "spread": np.array(spread, np.float32),
        "tokens": np.array(tokens, np.int32),
    }
    return {**found, **rows.arrays()}


def convert(file: Path, target: Path) -> None:
    """A GGUF file dequantised to bfloat16, as transformers writes it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    stored = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    config = stored.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(stored.state_dict())
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(target)


_SETTINGS = ("config", "generation_config")
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""A llama's tensors in a GGUF file, and in transformers."""


def facts_of(directory: Path) -> Arrays:
    """What is kept of a converted model, uint8 arrays: its settings, but for transformers' version, and the digest of
    its weights."""
    found: dict[str, bytes] = {}
    for name in _SETTINGS:
        settings = json.loads((directory / f"{name}.json").read_text())
        del settings["transformers_version"]
        found[name] = json.dumps(settings).encode()
    found["weights"] = _digest(load_file(directory / "model.safetensors"))
    return {key: np.frombuffer(value, np.uint8) for key, value in found.items()}


def convert_as_kept(file: Path, target: Path, reference: Arrays) -> None:
    """`convert` for a llama, in a tenth of the time: the same settings and, to the bit, the same weights, else
    AssertionError. The tokenizer is one that decodes alike."""
    for name in _SETTINGS:
        (target / f"{name}.json").write_bytes(reference[name].tobytes())
    config = json.loads((target / "config.json").read_text())
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    source = open_gguf(file)
    tensors: dict[str, torch.Tensor] = {}
    for stored, entry in source.header.tensors.items():
        layer, kind = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", stored, re.ASCII).groups()  # type: ignore[union-attr]
        name = _NAMES[kind]
        values = _float(source, stored.removesuffix(".weight"), entry.shape)
        if (count := heads.get(name.rpartition(".")[2])) is not None:
            # GGUF: the pairs that are rotated together lie side by side; transformers: half a head apart.
            values = values.unflatten(0, (count, -1, 2)).transpose(1, 2).flatten(0, 2)
        tensors[f"{name if layer is None else f'model.layers.{layer}.{name}'}.weight"] = values.bfloat16().contiguous()
    assert _digest(tensors) == reference["weights"].tobytes(), "not the weights that transformers makes of the file"
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    vocab = {token: at for at, token in enumerate(source.header.metadata["tokenizer.ggml.tokens"])}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(target / "tokenizer.json"))


def _float(source: GGUFSource, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor in float32."""
    if len(shape) == 1:
        return source.vector(f"{name}.weight", shape[0])
    return source.matrix(name, *shape, bias=False).dequantize()


def _digest(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """SHA-256 of names, types, shapes and bytes."""
    found = hashlib.sha256()
    for name, values in sorted(tensors.items()):
        found.update(f"{name} {values.dtype} {list(values.shape)}\n".encode())
        found.update(values.contiguous().view(torch.uint8).numpy())
    return found.digest()


def windows(directory: Path) -> list[list[int]]:
    """Prompts: ten windows of Python's own documentation for each length. They differ from one Python to the next."""
    import pydoc_data.topics

    from transformers import AutoTokenizer

    topics: dict[str, str] = pydoc_data.topics.topics
    whole = "\n\n".join(topics[name] for name in sorted(topics))[:150_000]
    ids = AutoTokenizer.from_pretrained(directory)(whole, add_special_tokens=False)["input_ids"]
    apart = len(ids) // (len(LENGTHS) * PER_LENGTH) - 1
    starts = iter(range(0, len(ids), apart))
    return [ids[at : at + length] for length in LENGTHS for _, at in zip(range(PER_LENGTH), starts, strict=False)]


@torch.no_grad()
def compute_text(directory: Path, prompts: list[list[int]]) -> Arrays:
    """Of a converted model, by transformers: `prompts`, one after the other; `tokens` [prompts, TEXT_STEPS], greedy in
    bfloat16; and
    of every step `top_ids`, `top` [prompts, TEXT_STEPS, TEXT_TOP] in float32, and `error`, the largest that bfloat16
    makes among
    those.
    """
    from transformers import AutoModelForCausalLM

    rounded, exact = (
        AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval() for dtype in (torch.bfloat16, torch.float32)
    )
    rounded.generation_config.eos_token_id = None
    tokens, ids, top, error = [], [], [], []
    for start in range(0, len(prompts), PER_LENGTH):  # prompts of a length in one batch, so that nothing is padded
        batch = torch.tensor(prompts[start : start + PER_LENGTH])
        whole = rounded.generate(batch, max_new_tokens=TEXT_STEPS, do_sample=False, pad_token_id=0)
        tokens.append(whole[:, batch.shape[1] :])
        for text in whole:
            true, found = (model(text[None, :-1]).logits[0, batch.shape[1] - 1 :].float() for model in (exact, rounded))
            best = true.topk(TEXT_TOP)
            ids.append(best.indices)
            top.append(best.values)
            error.append((best.values - found.gather(1, best.indices)).abs().amax(1))
    flat = np.array([token for prompt in prompts for token in prompt], np.int32)
    kept = {"tokens": torch.cat(tokens).int(), "top_ids": torch.stack(ids).int(), "top": torch.stack(top)}
    return {"prompts": flat, **{key: value.numpy() for key, value in {**kept, "error": torch.stack(error)}.items()}}
