#!/usr/bin/env python3
"""Writes docs/configuration.md from the fields of `headrace.config` and `headrace.environment`.

Run it after a change of an option.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path

from headrace import config, environment
from headrace.options import ENGINE, SERVER, Option

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
_HEAD = """# Configuration

Written from the code by `tools/write_configuration.py`. Every option of the engine is a flag of the verbs that load a
model (`headrace serve`, `generate`, `chat`, `bench offline`…) and a keyword argument of `LLM` and `AsyncLLM`. A wrong
value is an error that names the option. Sizes are numbers of bytes, or texts such as `2GiB` and `500M`.
"""

# Variables that libraries and drivers define, with what they mean for Headrace.
_SHARED = {
    "HF_ENDPOINT": "Address of the model hub. Default: Hugging Face's.",
    "HF_TOKEN": "Token of an account there, for gated and private repositories.",
    "HF_HUB_OFFLINE": "1 takes what is in the hub's cache alone, and opens no connection to the hub.",
    "HF_HOME": "Folder of the hub's cache, which is shared with other programs. Default: ~/.cache/huggingface.",
    "SSL_CERT_FILE": "Certificates that `chat`, `run` and `top` trust instead of those they come with.",
    "CUDA_VISIBLE_DEVICES": "Devices of `cuda`; those of `rocm` if HIP_VISIBLE_DEVICES is not set.",
    "HIP_VISIBLE_DEVICES": "Devices of `rocm`, of those that ROCR_VISIBLE_DEVICES leaves.",
    "ZE_AFFINITY_MASK": "Devices of `xpu`.",
    "PJRT_DEVICE": "CPU runs `tpu` on XLA's CPU backend, for tests.",
}


def page() -> str:
    """The complete page."""
    parts = [
        _HEAD,
        *_table("Engine", ENGINE, True),
        *_table("Server (`headrace serve`)", SERVER, False),
        *_environment(),
    ]
    return "\n".join(parts)


def _table(title: str, options: Mapping[str, Option], keyword: bool) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"| flag |{' keyword |' if keyword else ''} value | default | meaning |"
    yield f"|---|{'---|' if keyword else ''}---|---|---|"
    for option in options.values():
        name = f" `{option.name}` |" if keyword else ""
        yield f"| `{option.flag}` |{name} {_value(option)} | {_default(option)} | {option.info.description} |"
    yield ""


def _value(option: Option) -> str:
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    if option.is_switch:
        return "on or off"
    if option.is_mapping:
        return "NAME=VALUE, any number of times"
    if option.kind is config.Bytes:
        return "size"
    return option.unit or {int: "number", float: "number"}.get(option.kind, "text")


def _default(option: Option) -> str:
    if option.is_switch:
        return "on" if option.info.default else "off"
    return f"`{option.default_text}`" if option.default_text else "`auto`" if option.info.default == "auto" else ""


def _environment() -> Iterator[str]:
    yield "## Environment variables\n"
    yield "| variable | meaning |"
    yield "|---|---|"
    (table,) = ast.parse(inspect.getsource(environment.Environment)).body
    assert isinstance(table, ast.ClassDef)
    for node in table.body[1:]:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            variable, _, meaning = str(node.value.value).partition(": ")
            text = " ".join(meaning.split())
            yield f"| `{variable}` | {text[0].upper()}{text[1:]} |"
    yield "\nOther programs share these; traces read those of OpenTelemetry, too ([operations.md](operations.md)).\n"
    yield "| variable | meaning |"
    yield "|---|---|"
    for variable, meaning in _SHARED.items():
        yield f"| `{variable}` | {meaning} |"
    yield ""


if __name__ == "__main__":
    PAGE.write_text(page())
