"""Options that users of other engines type, and what they are called here."""

from __future__ import annotations

__all__ = ["FOREIGN_OPTIONS", "FOREIGN_VERBS"]

_MODEL = "the model is an argument of its own: headrace {verb} MODEL"
_KV = "--kv-memory"
_SHARE = "--kv-share"
_LENGTH = "--max-model-len"
_BUDGET = "--max-num-batched-tokens"
_SEQUENCES = "--max-num-seqs"
_RANKS = "--tensor-parallel-size"
_STAGES = "--pipeline-parallel-size"
_EXPERTS = "--expert-parallel, over the ranks of --tensor-parallel-size"
_DRAFTS = "--speculate METHOD, as in --speculate draft:MODEL"
_WHOLE = "the whole model lies on the device that --platform and --device-index choose"
_ALWAYS = "it is always so"
_NO_CODE = "code from a checkpoint is never run"
_FORMAT = "the checkpoint's own format is found by itself; --quantize quantises unquantised weights"
_PREFIX = "prefixes are cached unless --no-prefix-caching is given"

FOREIGN_OPTIONS = {
    # vLLM
    "--model": _MODEL,
    "--gpu-memory-utilization": _SHARE,
    "--kv-cache-memory-bytes": _KV,
    "--kv-cache-dtype": "--kv-dtype",
    "--num-gpu-blocks-override": "--num-blocks",
    "--quantization": _FORMAT,
    "-q": _FORMAT,
    "-tp": _RANKS,
    "-pp": _STAGES,
    "--enable-expert-parallel": _EXPERTS,
    "-ep": _EXPERTS,
    "--enable-prefix-caching": _PREFIX,
    "--no-enable-prefix-caching": "--no-prefix-caching",
    "--enable-chunked-prefill": _ALWAYS,
    "--enforce-eager": "a step that cannot be recorded runs without that by itself",
    "--trust-remote-code": _NO_CODE,
    "--speculative-config": _DRAFTS,
    "--guided-decoding-backend": "--grammar-backend",
    "--structured-outputs-config": "--grammar-backend",
    "--enable-auto-tool-choice": _ALWAYS,
    "--tool-call-parser": "--tool-format, if it is not detected",
    "--reasoning-parser": "--reasoning-format, if it is not detected",
    "--download-dir": "the environment variable HEADRACE_CACHE",
    "--allowed-origins": "--cors-origin",
    "--device": "--platform",
    "--seed": "a request has a seed of its own",
    # SGLang
    "--model-path": _MODEL,
    "--tp": _RANKS,
    "--tp-size": _RANKS,
    "--pp": _STAGES,
    "--pp-size": _STAGES,
    "--ep-size": _EXPERTS,
    "--expert-parallel-size": _EXPERTS,
    "--mem-fraction-static": _SHARE,
    "--context-length": _LENGTH,
    "--max-running-requests": _SEQUENCES,
    "--chunked-prefill-size": _BUDGET,
    "--max-prefill-tokens": _BUDGET,
    "--max-total-tokens": "--num-blocks",
    "--disable-radix-cache": "--no-prefix-caching",
    "--page-size": "--block-size",
    "--speculative-algorithm": _DRAFTS,
    "--speculative-draft-model-path": _DRAFTS,
    "--attention-backend": "--device-option, as in --device-option operators=flashinfer",
    # llama.cpp
    "-m": _MODEL,
    "-hf": _MODEL,
    "--hf-repo": _MODEL,
    "-c": _LENGTH,
    "--ctx-size": _LENGTH,
    "-ngl": _WHOLE,
    "--n-gpu-layers": _WHOLE,
    "--gpu-layers": _WHOLE,
    "-t": "--threads",
    "-b": _BUDGET,
    "--batch-size": _BUDGET,
    "-ub": _BUDGET,
    "--ubatch-size": _BUDGET,
    "-np": _SEQUENCES,
    "--parallel": _SEQUENCES,
    "-fa": _ALWAYS,
    "--flash-attn": _ALWAYS,
    "--jinja": _ALWAYS,
    "-ctk": "--kv-dtype",
    "-ctv": "--kv-dtype",
    "--cache-type-k": "--kv-dtype",
    "--cache-type-v": "--kv-dtype",
    "-a": "--served-model-name",
    "--chat-template-file": "--chat-template",
    "-md": _DRAFTS,
    "--model-draft": _DRAFTS,
    "-n": "--max-tokens",
    "--n-predict": "--max-tokens",
    "--predict": "--max-tokens",
    "--temp": "--temperature",
    "-s": "--seed",
    "-sys": "--system",
    "--system-prompt": "--system",
    "-p": "the prompt is an argument of its own, in quotation marks",
    # Ollama
    "--format": "--json-schema FILE",
    "--keepalive": "--keep-alive",
    "--verbose": "the environment variable HEADRACE_LOG=debug",
    "--num-ctx": _LENGTH,
    # TGI
    "--model-id": _MODEL,
    "--num-shard": _RANKS,
    "--max-concurrent-requests": "--max-waiting",
    "--max-input-tokens": _LENGTH,
}
"""Option → what to give instead: an option of ours and perhaps more, or the reason why there is none."""

FOREIGN_VERBS = {
    "start": "serve",
    "server": "serve",
    "launch": "serve",
    "launch_server": "serve",
    "up": "serve",
    "complete": "generate",
    "ask": "run",
    "cli": "chat",
    "download": "pull",
    "install": "pull",
    "get": "pull",
    "ls": "list",
    "show": "models",
    "search": "models",
    "remove": "rm",
    "delete": "rm",
    "info": "doctor",
    "check": "doctor",
    "benchmark": "bench",
    "test": "conformance",
    "batch": "run-batch",
    "completions": "completion",
}
"""Verb → ours."""
