"""Checks the contract version of a platform."""

from __future__ import annotations

from headrace.types import API_VERSION

__all__ = ["version_fault"]


def version_fault(version: object, ours: tuple[int, int] = API_VERSION) -> str | None:
    """Why a platform of this contract version cannot be used; None if it can (same major, same or previous minor)."""
    if not (isinstance(version, tuple) and len(version) == 2 and all(isinstance(part, int) for part in version)):
        return f"api_version is {version!r}: it must be (major, minor)"
    major, minor = version
    if major == ours[0] and minor in (ours[1], ours[1] - 1):
        return None
    remedy = "upgrade headrace" if version > ours else "upgrade the plugin"
    oldest = max(ours[1] - 1, 0)
    return f"it has contract {major}.{minor}, this is {ours[0]}.{ours[1]} (from {ours[0]}.{oldest} on): {remedy}"
