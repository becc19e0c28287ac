"""All errors that Headrace raises on purpose.

HeadraceError
├── UserError                 the caller's fault; the server answers 4xx
│   ├── ConfigError           an option or environment variable
│   │   ├── NoRoom            larger than the memory that is free now
│   │   └── AddressTaken      another server has the address now
│   ├── InvalidRequest        a field of a request; `.param` names it, `.code` is OpenAI's error code
│   │   ├── ContextOverflow   longer than the model's context
│   │   └── NeverFits         larger than the KV pool can ever hold
│   ├── ProgramError          a program or plan of `headrace.lang`; `.node` names the place
│   ├── ModelNotFound         a path or catalogue name
│   └── UnsupportedModel      an architecture, format or feature that cannot be served
├── CheckpointError           a file that is truncated or wrong; `.path` and `.tensor` name the place
├── PluginError               a plugin that fails to load or breaks its contract
├── PlatformError             a device: cannot open, out of memory, lost
│   ├── OutOfMemory
│   └── DeviceLost
├── TransferError             a block from a tier or another engine that cannot be taken; it is computed instead
├── Overloaded                too many requests wait; `.retry_after` in seconds
├── RateLimited               a limit of the client's key; `.kind` names it, `.retry_after` in seconds
└── EngineDead                the engine process ended or hangs
"""

from __future__ import annotations

import re
import reprlib

__all__ = [
    "AddressTaken",
    "CheckpointError",
    "ConfigError",
    "ContextOverflow",
    "DeviceLost",
    "EngineDead",
    "HeadraceError",
    "InvalidRequest",
    "ModelNotFound",
    "NeverFits",
    "NoRoom",
    "OutOfMemory",
    "Overloaded",
    "PlatformError",
    "PluginError",
    "ProgramError",
    "RateLimited",
    "TransferError",
    "UnsupportedModel",
    "UserError",
    "excerpt",
    "lasts",
    "shortened",
    "truncate",
]

MOST_ECHOED = 200
"""Most characters of input that a message repeats."""
_LONGEST = 1000
_QUOTED = re.compile(r"'[^']{200,}'|\"[^\"]{200,}\"|`[^`]{200,}`|\S{200,}")


def truncate(text: str, limit: int = MOST_ECHOED) -> str:
    """The text, without its middle if it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail - 1]}…{text[-tail:]}"


_repr = reprlib.Repr()
_repr.maxlevel, _repr.maxstring, _repr.maxother, _repr.maxlong = 3, 120, 120, 60


def excerpt(value: object, limit: int = 120) -> str:
    """The `repr` of a value, short and on one line, for messages that repeat input. A large value is never formatted
    completely."""
    return truncate(" ".join(_repr.repr(value).split()), limit)


def shortened(message: str) -> str:
    """The message, with the middle of long quoted parts removed."""
    if len(message) <= MOST_ECHOED:
        return message
    return truncate(_QUOTED.sub(lambda found: truncate(found[0]), message), _LONGEST)


class HeadraceError(Exception):
    """Base class of all errors."""


class UserError(HeadraceError):
    """The caller requested something that cannot be done."""

    def __init__(self, message: str) -> None:
        super().__init__(shortened(message))


class ConfigError(UserError):
    """An option, a file of options or an environment variable is wrong."""


class NoRoom(ConfigError):
    """What the options ask for does not fit into the memory that is free now."""


class AddressTaken(ConfigError):
    """Another server has the address now, or starts there."""


class InvalidRequest(UserError):
    """A field of a request is wrong. `param` is the field's name as the client wrote it."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = None if param is None else truncate(param)
        self.code = code


class ContextOverflow(InvalidRequest):
    """Prompt and requested output exceed the model's context. `tokens`: of the prompt, at least, if it alone exceeds
    `limit`."""

    def __init__(
        self, message: str, param: str | None = None, tokens: int | None = None, limit: int | None = None
    ) -> None:
        super().__init__(message, param, "context_length_exceeded")
        self.tokens, self.limit = tokens, limit


class NeverFits(InvalidRequest):
    """The request would need more KV blocks than the pool has in total."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message, param, "kv_capacity_exceeded")


class ProgramError(UserError):
    """A program that cannot be traced, a plan that may not run, or a run that failed. `node` is the place: the
    program's FILE:LINE, or the path of the node in the plan."""

    def __init__(self, message: str, node: str = "") -> None:
        super().__init__(f"{truncate(node)}: {message}" if node else message)
        self.node = node


class ModelNotFound(UserError):
    """The model is neither a path nor a name of the catalogue."""


class UnsupportedModel(UserError):
    """The checkpoint is valid but needs something that is not implemented."""


class CheckpointError(HeadraceError):
    """A file of a checkpoint is truncated, inconsistent or of another format than it declares."""

    def __init__(self, message: str, path: str | None = None, tensor: str | None = None) -> None:
        where = f"{path}: " if path else ""
        what = f"tensor {excerpt(tensor)}: " if tensor else ""
        super().__init__(shortened(f"{where}{what}{message}"))
        self.path = path
        self.tensor = tensor


class PluginError(HeadraceError):
    """A plugin failed to load or violated its contract. The error names the plugin, its version, the hook and the
    cause."""


class PlatformError(HeadraceError):
    """A device cannot be opened or failed while running."""


class OutOfMemory(PlatformError):
    """The device has less memory than was requested. The error has both numbers."""


class DeviceLost(PlatformError):
    """The device stopped answering; the engine must be restarted."""


class TransferError(HeadraceError):
    """A block from a tier or from another engine cannot be taken. It is a miss: its tokens are computed."""


class Overloaded(HeadraceError):
    """The waiting queue is full."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimited(HeadraceError):
    """A client's key has used up one of its limits: `kind` is `requests`, `tokens` or `concurrency`. An infinite
    `retry_after` says that the request is larger than the limit ever allows."""

    def __init__(self, message: str, kind: str, retry_after: float) -> None:
        super().__init__(message)
        self.kind, self.retry_after = kind, retry_after


class EngineDead(HeadraceError):
    """The engine process ended or does not answer; requests in flight are lost."""


def lasts(error: BaseException) -> bool:
    """Whether every further try would fail in the same way: what is free comes and goes, an option stays wrong."""
    return isinstance(error, (UserError, CheckpointError, PluginError)) and not isinstance(
        error, (NoRoom, AddressTaken)
    )
