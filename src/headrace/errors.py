"""Every error that Headrace raises on purpose.

HeadraceError
├── UserError                 the caller's fault; the server answers 4xx
│   ├── ConfigError           an option or environment variable
│   ├── InvalidRequest        a field of a request; `.param` names it, `.code` is OpenAI's error code
│   │   ├── ContextOverflow   longer than the model's context
│   │   └── NeverFits         larger than the KV pool can ever hold
│   ├── ModelNotFound         a path or catalogue name
│   └── UnsupportedModel      an architecture, format or feature that cannot be served
├── CheckpointError           a file that is truncated or wrong; `.path` and `.tensor` name the place
├── PluginError               a plugin that fails to load or breaks its contract
├── PlatformError             a device: cannot open, out of memory, lost
│   ├── OutOfMemory
│   └── DeviceLost
├── Overloaded                too many requests wait; `.retry_after` in seconds
└── EngineDead                the engine process ended or hangs
"""

from __future__ import annotations

import re
import reprlib

__all__ = [
    "CheckpointError",
    "ConfigError",
    "ContextOverflow",
    "DeviceLost",
    "EngineDead",
    "HeadraceError",
    "InvalidRequest",
    "ModelNotFound",
    "NeverFits",
    "OutOfMemory",
    "Overloaded",
    "PlatformError",
    "PluginError",
    "UnsupportedModel",
    "UserError",
    "cut",
    "excerpt",
    "shortened",
]

MOST_ECHOED = 200
"""Characters of input that a message repeats at most."""
_LONGEST = 1000
_QUOTED = re.compile(r"'[^']{200,}'|\"[^\"]{200,}\"|`[^`]{200,}`|\S{200,}")


def cut(text: str, limit: int = MOST_ECHOED) -> str:
    """The text, without its middle where it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail - 1]}…{text[-tail:]}"


_repr = reprlib.Repr()
_repr.maxlevel, _repr.maxstring, _repr.maxother, _repr.maxlong = 3, 120, 120, 60


def excerpt(value: object, limit: int = 120) -> str:
    """The value as Python writes it, short and on one line: what a message repeats of input. No large value is written out in
    full first."""
    return cut(" ".join(_repr.repr(value).split()), limit)


def shortened(message: str) -> str:
    """The message, with everything long that it quotes cut in the middle."""
    if len(message) <= MOST_ECHOED:
        return message
    return cut(_QUOTED.sub(lambda found: cut(found[0]), message), _LONGEST)


class HeadraceError(Exception):
    """Base of all."""


class UserError(HeadraceError):
    """The caller asked for something that cannot be done."""

    def __init__(self, message: str) -> None:
        super().__init__(shortened(message))


class ConfigError(UserError):
    """An option, a file of options or an environment variable is wrong."""


class InvalidRequest(UserError):
    """A field of a request is wrong. `param` is the field's name as the client wrote it."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = None if param is None else cut(param)
        self.code = code


class ContextOverflow(InvalidRequest):
    """Prompt and requested output exceed the model's context."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message, param, "context_length_exceeded")


class NeverFits(InvalidRequest):
    """The request would need more KV blocks than the pool has in all."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message, param, "kv_capacity_exceeded")


class ModelNotFound(UserError):
    """Neither a path nor a name of the catalogue."""


class UnsupportedModel(UserError):
    """The checkpoint is sound but asks for something that is not built."""


class CheckpointError(HeadraceError):
    """A file of a checkpoint is truncated, inconsistent or not what it claims to be."""

    def __init__(self, message: str, path: str | None = None, tensor: str | None = None) -> None:
        where = f"{path}: " if path else ""
        what = f"tensor {excerpt(tensor)}: " if tensor else ""
        super().__init__(shortened(f"{where}{what}{message}"))
        self.path = path
        self.tensor = tensor


class PluginError(HeadraceError):
    """A plugin failed to load or broke its contract: names the plugin, its version, the hook and the cause."""


class PlatformError(HeadraceError):
    """A device cannot be opened or failed while running."""


class OutOfMemory(PlatformError):
    """The device has less memory than was asked for; says both numbers."""


class DeviceLost(PlatformError):
    """The device stopped answering; the engine must be restarted."""


class Overloaded(HeadraceError):
    """The waiting queue is full."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineDead(HeadraceError):
    """The engine process ended or does not answer; requests in flight are lost."""
