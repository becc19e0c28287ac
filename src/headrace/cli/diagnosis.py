"""Collects the facts for `headrace doctor`."""

from __future__ import annotations

import importlib.metadata
import platform as python_platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.cli.doctor_facts import all_operator_facts, platform_facts
from headrace.cli.speculation_facts import add_depths, speculation_facts
from headrace.errors import HeadraceError
from headrace.platforms.host import host_memory, host_name, physical_cores
from headrace.platforms.interface import Platform
from headrace.plugins import PluginSet, discover

__all__ = ["cpu_features", "diagnose"]

_PACKAGES = ("headrace", "torch", "numpy", "tokenizers", "safetensors", "msgspec", "fastapi", "triton")
_FEATURES = (
    "avx avx2 fma f16c avx_vnni avx512f avx512bw avx512vl avx512_vnni avx512_bf16 avx512_fp16 "
    "amx_tile amx_int8 amx_bf16 asimd asimddp asimdhp bf16 i8mm sve sve2"
).split()
_LITTLE_MEMORY = 1 << 30


def diagnose(
    platform: str | None = None,
    plugins: PluginSet | None = None,
    options: Mapping[str, int | str] | None = None,
    speculate: str | None = None,
    stages: int = 1,
) -> dict[str, Any]:
    """Facts about this machine, as plain data for JSON.

    `platform`: the platform to inspect; None: the best one, and the operators of every platform that opens. `options`:
    options for opening the chosen platform's device. `speculate`: the method that a server would run with, in a
    pipeline of so many `stages`. Never raises for a fault of a plugin: the report lists it with a remedy.
    """
    found = discover() if plugins is None else plugins
    remedies: list[str] = [f"{failure}: repair or uninstall it" for failure in found.failures]
    chosen = _chosen(found, platform, remedies)
    platforms = platform_facts(found, chosen, remedies)
    methods = speculation_facts(found, speculate, remedies, stages)
    operators = all_operator_facts(found, chosen, remedies, options or {}, others=platform is None)
    add_depths(methods, None if chosen is None else operators.get(chosen.name), speculate, stages)
    report: dict[str, Any] = {
        "machine": _machine(),
        "versions": {"python": python_platform.python_version()} | {name: _version(name) for name in _PACKAGES},
        "plugins": [
            {
                "name": info.name,
                "distribution": info.distribution,
                "version": info.version,
                "target": info.target,
                "hooks": list(info.hooks),
                "error": None if info.error is None else str(info.error),
            }
            for info in found.plugins
        ],
        "platforms": platforms,
        "native": _native(platforms, remedies),
        "operators": None if chosen is None else operators.get(chosen.name),
        "operators_by_platform": operators,
        "speculation": methods,
        "remedies": remedies,
    }
    runs = speculate is None or any(method["chosen"] and method["problem"] is None for method in methods)
    report["usable"] = report["operators"] is not None and runs
    if host_memory()[0] < _LITTLE_MEMORY:
        remedies.append("less than 1 GiB of memory is free: close other programs, or serve a smaller model")
    return report


def _machine() -> dict[str, Any]:
    free, total = host_memory()
    return {
        "processor": host_name(),
        "cores": physical_cores(),
        "system": f"{python_platform.system()} {python_platform.machine()}",
        "features": cpu_features(),
        "memory_free": free,
        "memory_total": total,
    }


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Instruction sets that kernels use, by their Linux names; empty if the system doesn't report them."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    have = set(flags.partition(":")[2].split())
    return [name for name in _FEATURES if name in have]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _chosen(found: PluginSet, name: str | None, remedies: list[str]) -> Platform | None:
    try:
        return found.select_platform(name)[0]
    except HeadraceError as error:
        if str(error) not in " ".join(remedies):
            remedies.append(str(error))
        return None


def _native(platforms: list[dict[str, Any]], remedies: list[str]) -> dict[str, Any]:
    """The native library of the platform whose devices report one, or why there is none."""
    devices = (device for platform in platforms for device in platform["devices"])
    details: dict[str, Any] = next((d for d in devices if "native_library" in d or "native_problem" in d), {})
    library = details.get("native_library")
    problem = details.get("native_problem")
    if problem is not None:
        remedies.append(problem)
    elif library is None:
        problem = "no platform here has them"
    return {"library": library, "instruction_set": details.get("instruction_set"), "problem": problem}
