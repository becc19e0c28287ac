"""Options that several verbs share, and what they make: a `Config`, the arguments of `LLM`, sampling parameters.

Nothing but argparse is imported until one of them is made, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.config import Config

__all__ = [
    "add_device_option",
    "add_engine_options",
    "add_sampling_options",
    "add_server_options",
    "build_config",
    "engine_options",
    "parse_size",
    "sampling",
]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_ENGINE = (
    "dtype quantize max_model_len chat_template packed_cache block_size kv_dtype kv_memory prefix_caching max_num_seqs "
    "max_num_batched_tokens max_waiting platform device_index device_options threads tensor_parallel_size"
).split()
_SECTIONS = {
    "model": "dtype quantize max_model_len chat_template packed_cache",
    "cache": "block_size kv_dtype kv_memory prefix_caching",
    "scheduler": "max_num_seqs max_num_batched_tokens max_waiting",
    "device": "platform threads",
    "parallel": "tensor_parallel_size",
    "server": "host port api_key served_model_name drain_timeout",
}


def parse_size(text: str) -> int:
    """Bytes: a number with an optional unit (k, M, G, or Ki, Mi, Gi; a B may follow)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?i?)b?", text.strip().lower())
    if match is None or match[2] == "i":
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write it as 2GiB, 500M or 1000000")
    return int(float(match[1]) * _UNITS[match[2]])


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Where and how the model runs. What is left out keeps the configuration's own default."""
    group = parser.add_argument_group("engine")
    add = group.add_argument
    add("--platform", default=argparse.SUPPRESS, help="the platform to use (default: the best here, see doctor)")
    add("--device-index", type=int, default=argparse.SUPPRESS, metavar="N", help="which of its devices (default: 0)")
    add_device_option(group, argparse.SUPPRESS)
    add("--threads", type=int, default=argparse.SUPPRESS, metavar="N", help="on a host platform (default: one a core)")
    add(
        "--tensor-parallel-size",
        type=int,
        default=argparse.SUPPRESS,
        metavar="N",
        help="split every layer over N devices, or over N shares of the cores (default: 1)",
    )
    add("--dtype", default=argparse.SUPPRESS, help="auto, float32, bfloat16 or float16; float32 is exact")
    add("--quantize", default=argparse.SUPPRESS, help="int8 or int4: quantise wide weights on load")
    add("--max-model-len", type=int, default=argparse.SUPPRESS, metavar="TOKENS", help="longest prompt and answer")
    add("--max-num-seqs", type=int, default=argparse.SUPPRESS, metavar="N", help="sequences that run at once")
    add("--max-num-batched-tokens", type=int, default=argparse.SUPPRESS, metavar="N", help="token budget of a step")
    add("--max-waiting", type=int, default=argparse.SUPPRESS, metavar="N", help="requests that may wait")
    add("--kv-dtype", default=argparse.SUPPRESS, help="auto, float32, bfloat16, float16, int8 or float8_e4m3")
    add("--kv-memory", type=parse_size, default=argparse.SUPPRESS, metavar="SIZE", help="for the KV cache, as 2GiB")
    add("--block-size", type=int, default=argparse.SUPPRESS, metavar="TOKENS", help="tokens a KV block")
    add(
        "--no-prefix-caching",
        dest="prefix_caching",
        action="store_false",
        default=argparse.SUPPRESS,
        help="compute every prompt anew",
    )
    add(
        "--packed-cache", type=parse_size, default=argparse.SUPPRESS, metavar="SIZE", help="for packed weights; 0: none"
    )
    add("--chat-template", default=argparse.SUPPRESS, metavar="FILE", help="in place of the checkpoint's own")


def add_device_option(group: argparse._ActionsContainer, default: object) -> None:
    """`--device-option NAME=VALUE`, any number of times, as a dictionary."""
    text = "an option of the platform itself; may be given again"
    group.add_argument(
        "--device-option", dest="device_options", action=_Pairs, default=default, metavar="NAME=VALUE", help=text
    )


class _Pairs(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, _: Any = None
    ) -> None:
        name, equals, value = str(values).partition("=")
        if not equals:
            raise argparse.ArgumentError(self, f"{values!r}: write NAME=VALUE")
        known = dict(getattr(namespace, self.dest, None) or {})
        setattr(namespace, self.dest, {**known, name: int(value) if value.lstrip("-").isdigit() else value})


def add_server_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    add = group.add_argument
    add("--host", default=argparse.SUPPRESS, help="address to listen on (default: 127.0.0.1; 0.0.0.0 is all)")
    add("--port", type=int, default=argparse.SUPPRESS, help="default: 8000; 0 takes a free one")
    add("--api-key", default=argparse.SUPPRESS, help="asked of every client; HEADRACE_API_KEY does the same unseen")
    add("--served-model-name", default=argparse.SUPPRESS, metavar="NAME", help="what clients call the model")
    add("--drain-timeout", type=float, default=argparse.SUPPRESS, metavar="S", help="for running requests at the end")


def add_sampling_options(parser: argparse.ArgumentParser, temperature: float, max_tokens: int) -> None:
    group = parser.add_argument_group("sampling")
    add = group.add_argument
    add("--max-tokens", type=int, default=max_tokens, metavar="N", help=f"of an answer (default: {max_tokens})")
    add("--temperature", type=float, default=temperature, metavar="T", help=f"default: {temperature:g}; 0 is greedy")
    add("--top-p", type=float, default=1.0, metavar="P")
    add("--top-k", type=int, default=0, metavar="K")
    add("--min-p", type=float, default=0.0, metavar="P")
    add("--seed", type=int, default=None, metavar="N")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be given again")


def sampling(args: argparse.Namespace) -> dict[str, Any]:
    """Named as OpenAI's API and `SamplingParams` name them."""
    names = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed")
    return {name: getattr(args, name) for name in names} | {"stop": tuple(args.stop)}


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """What the user gave, as the arguments of `LLM` and `AsyncLLM`."""
    return {name: getattr(args, name) for name in _ENGINE if hasattr(args, name)}


def build_config(args: argparse.Namespace) -> Config:
    """What the user gave over the defaults, the key from the environment too. Raises ConfigError naming the option."""
    from pydantic import ValidationError

    from headrace.config import Config, read_environment

    given = {k: {n: getattr(args, n) for n in names.split() if hasattr(args, n)} for k, names in _SECTIONS.items()}
    given["model"]["model"] = args.model
    for name in ("index", "options"):
        if hasattr(args, f"device_{name}"):
            given["device"][name] = getattr(args, f"device_{name}")
    key = read_environment().api_key
    if key is not None:
        given["server"].setdefault("api_key", key)
    try:
        return Config.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        option = "-".join(map(str, first["loc"])) if first["loc"][-1] == "index" else str(first["loc"][-1])
        option = option.replace("_", "-")
        raise ConfigError(f"--{option} {first['input']}: {first['msg']}") from None
