"""The environment variables of Headrace, in one typed table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ConfigError

__all__ = ["Environment", "read_environment"]


@dataclass(frozen=True, slots=True)
class Environment:
    """All environment variables of Headrace's own."""

    cache_dir: Path
    """HEADRACE_CACHE: pulled models, packed weights, profiles and the chat's history. Default: $XDG_CACHE_HOME/headrace
    or ~/.cache/headrace."""
    api_key: str | None
    """HEADRACE_API_KEY: as --api-key, without showing in the process list."""
    log_level: str
    """HEADRACE_LOG: debug, info, warning or error."""
    kv_secret: str | None
    """HEADRACE_KV_SECRET: the secret that the engines of a group share; as --kv-secret-file."""
    native: bool
    """HEADRACE_NATIVE: 0 keeps the CPU platform on its reference operators."""


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """Read and check the variables. Raises ConfigError that names the variable and its valid values."""
    env = os.environ if environ is None else environ
    level = env.get("HEADRACE_LOG", "info").lower()
    if level not in ("debug", "info", "warning", "error"):
        raise ConfigError(f"HEADRACE_LOG={level!r}: choose debug, info, warning or error")
    native = env.get("HEADRACE_NATIVE", "1")
    if native not in ("0", "1"):
        raise ConfigError(f"HEADRACE_NATIVE={native!r}: choose 0 or 1")
    key = env.get("HEADRACE_API_KEY")
    return Environment(
        cache_dir=_cache_dir(env),
        # White space around a key comes from the file that it was read from; a client cannot send it.
        api_key=None if key is None else key.strip(),
        log_level=level,
        kv_secret=env.get("HEADRACE_KV_SECRET", "").strip() or None,
        native=native == "1",
    )


def _cache_dir(env: Mapping[str, str]) -> Path:
    chosen, base = env.get("HEADRACE_CACHE"), env.get("XDG_CACHE_HOME")
    if chosen or base:
        return Path(chosen) if chosen else Path(str(base)) / "headrace"
    try:
        home = Path(env.get("HOME") or "~").expanduser()
    except RuntimeError:  # A user without an entry in the system's list, as in many containers.
        raise ConfigError(
            "this user has no home directory for models and packed weights: set HEADRACE_CACHE to a folder for them"
        ) from None
    return home / ".cache" / "headrace"
