"""Facts of platforms and operators for `headrace doctor`: usability, implementations, tolerances, and reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.errors import HeadraceError
from headrace.kernels.registry import OPS, OPTIONAL, Binding, ByReference, binding
from headrace.kernels.spec import OpSpec
from headrace.platforms.interface import CaptureReason, Device, Platform, ProviderVersions, Tagged, TimesLaunches
from headrace.plugins import AUTO_SCORE, PlatformProbe, PluginSet

__all__ = ["all_operator_facts", "operator_facts", "operator_lines", "platform_facts", "platform_lines"]

_DTYPES = ("float32", "bfloat16", "float16")
_OPTIONAL = "only some architectures call it"


def platform_facts(found: PluginSet, chosen: Platform | None, remedies: list[str]) -> list[dict[str, Any]]:
    """Every platform, the best first, with its probe's reason, and a remedy if it cannot be used."""
    probes, faults = found.survey()
    remedies += [f"{fault}: repair or uninstall it" for fault in faults if str(fault) not in " ".join(remedies)]
    return [_platform(probe, chosen, remedies) for probe in probes]


def _platform(probe: PlatformProbe, chosen: Platform | None, remedies: list[str]) -> dict[str, Any]:
    platform = probe.platform
    return {
        "name": platform.name,
        "score": probe.score,
        "reason": probe.reason,
        "remedy": _remedy(probe),
        "plugin": probe.plugin.name,
        "chosen": chosen is not None and platform.name == chosen.name,
        "devices": _devices(probe, remedies) if probe.score > 0 else [],
    }


def _devices(probe: PlatformProbe, remedies: list[str]) -> list[dict[str, Any]]:
    """The platform's devices. If the platform's code raises, the list is empty and the error is among the remedies."""
    try:
        return [
            {"index": int(d.index), "name": str(d.name), "memory": int(d.memory_bytes), **dict(d.details)}
            for d in probe.platform.devices()
        ]
    except Exception as error:
        remedies.append(f"{probe.plugin}: devices() raised {_described(error)}: repair or uninstall it")
        return []


def _described(error: Exception) -> str:
    return str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"


def _remedy(probe: PlatformProbe) -> str:
    """A remedy in one line; empty if nothing is wrong. A probe's reason has the form `what is missing: what to do`,
    separated by the first colon."""
    if probe.score >= AUTO_SCORE:
        return ""
    if probe.score > 0:
        return f"chosen by name only: --platform {probe.platform.name}"
    return probe.reason.partition(": ")[2] or f"see its plugin, {probe.plugin.distribution}"


def all_operator_facts(
    found: PluginSet, chosen: Platform | None, remedies: list[str], options: Mapping[str, int | str], others: bool
) -> dict[str, dict[str, Any]]:
    """Facts by platform: the chosen one first, opened with `options`; with `others`, every other one that opens."""
    probes = [probe.platform for probe in found.survey()[0] if probe.score > 0] if others else []
    facts = {} if chosen is None else {chosen.name: operator_facts(chosen, remedies, options)}
    facts |= {platform.name: operator_facts(platform, remedies) for platform in probes if platform is not chosen}
    return {name: found for name, found in facts.items() if found is not None}


def operator_facts(
    platform: Platform, remedies: list[str], options: Mapping[str, int | str] | None = None
) -> dict[str, Any] | None:
    """The operators of the platform's first device, which is opened for this; None if that fails."""
    try:
        device = platform.open(0, options or {})
        try:
            bound, extras = binding(device), _extras(device)
        finally:
            device.close()
    # A vendor's code may raise anything, and the report continues.
    except Exception as error:
        remedies.append(f"{platform.name}: {_described(error)}")
        return None
    missing = [name for name, tag in bound.tags.items() if tag == ByReference.tag]
    if missing:
        reason = bound.reasons[missing[0]]
        remedies.append(f"{platform.name}: by reference, slowly: {', '.join(missing)} ({reason})")
    return {
        "platform": platform.name,
        "bound": [_operator(spec, bound.tags[spec.name], bound.reasons[spec.name]) for spec in OPS],
        "optional": [
            _operator(spec, _tag(bound, spec, device), _why_optional(spec, bound.optional_reasons[spec.name]))
            for spec in OPTIONAL
        ],
        **extras,
    }


def _operator(spec: OpSpec, tag: str, reason: str) -> dict[str, Any]:
    return {"name": spec.name, "implementation": tag, "reason": reason, "tolerance": dict(spec.tolerance)}


def _why_optional(spec: OpSpec, reason: str) -> str:
    """The reason of an optional operator. One that can be composed from others may be called by every architecture."""
    return reason if spec.compose is not None else f"{reason}; {_OPTIONAL}"


def _tag(bound: Binding, spec: OpSpec, device: Device) -> str:
    operator = bound.optional[spec.name]
    return operator.tag if isinstance(operator, Tagged) else type(device).__name__


def _extras(device: Device) -> dict[str, Any]:
    """Versions of the platform's libraries, and why it captures no steps, if it reports them; whether the device knows
    the times of its launches."""
    providers, captures = device.extension(ProviderVersions), device.extension(CaptureReason)
    return {
        "providers": {} if providers is None else dict(providers.provider_versions()),
        "graphs": "" if captures is None else captures.why_uncaptured(),
        "exact_times": device.extension(TimesLaunches) is not None,
    }


def platform_lines(platforms: list[dict[str, Any]]) -> Iterator[str]:
    for platform in platforms:
        mark = "*" if platform["chosen"] else " "
        score = f"score {platform['score']}" if platform["score"] > 0 else "unusable"
        yield f" {mark}{platform['name']:<12}{score}: {platform['reason']}"
        for device in platform["devices"]:
            yield f"  {'':<12}device {device['index']}: {device['name']}, {device['memory'] / 2**30:.1f} GiB"
        if platform["remedy"] and not platform["reason"].endswith(platform["remedy"]):
            yield f"  {'':<12}{platform['remedy']}"


def operator_lines(operators: Mapping[str, Any]) -> Iterator[str]:
    """The operators as lines of a table. Tolerances are normalised mean squared errors against the reference, by input
    type."""
    yield f"operators on {operators['platform']}"
    yield f"  {'':<18}{'by':<27} " + "".join(f"{dtype:>10}" for dtype in _DTYPES) + "  error allowed; why"
    for operator in (*operators["bound"], *operators["optional"]):
        allowed = "".join(_allowed(operator["tolerance"].get(dtype)) for dtype in _DTYPES)
        yield f"  {operator['name']:<18}{operator['implementation']:<27} {allowed}  {operator['reason']}"
    times = "exact, by the device" if operators["exact_times"] else "estimated, by the host"
    yield f"  times of steps and drafts: {times}"
    for name, version in operators["providers"].items():
        yield f"  provider {name}: {version}"
    if operators["graphs"]:
        yield f"  steps are not captured: {operators['graphs']}"


def _allowed(tolerance: float | None) -> str:
    return f"{'-' if tolerance is None else 'none' if not tolerance else f'{tolerance:.0e}':>10}"
