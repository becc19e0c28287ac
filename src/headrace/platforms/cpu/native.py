"""The library of native kernels: its path, the instruction sets that this processor can run, and its functions."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import headrace
from headrace.errors import PlatformError

__all__ = ["ABI", "ISAS", "REMEDY", "HostCopy", "Library", "describe", "find", "load", "missing", "usable"]

ISAS = ("amx", "v4bf16", "v4", "v3", "dotprod", "generic")
"""Instruction sets that the library may contain, best first: AMX tiles, AVX-512 with BF16, AVX-512 with VNNI, AVX2; Arm
dot products; any processor (SSE2, NEON)."""
_LEVEL = {"generic": 0, "v3": 1, "v4": 2, "v4bf16": 3, "dotprod": 4, "amx": 5}
_UNDER = {"amx": "v4bf16"}
"""Instruction set → the one whose kernels it uses for operators that it has no kernel for: AMX tiles only serve
products."""
_SLOW_DOT = 6
"""The question to `hr_cpu_has` whether dot products of bfloat16 pairs are slower than multiply-adds."""
_WITHOUT_DOT = {("attention", "v4bf16"): "v4", ("attention", "amx"): "v4"}
"""Kernels that are made of those products, and the instruction set whose kernel has none."""
_NAME = "libheadrace_cpu.so"
ABI = 2
"""`HR_ABI` of `kernels/native/headrace.h`: the version of the runtime's functions and their arguments."""
REMEDY = "run `make` in the checkout, or install headrace again"


class HostCopy(ctypes.Structure):
    """One host-to-host copy of a job."""

    _fields_ = (("dst", ctypes.c_void_p), ("src", ctypes.c_void_p), ("bytes", ctypes.c_int64))


@dataclass(frozen=True, slots=True)
class Library:
    """The loaded library, for one instruction set."""

    path: Path
    isa: str
    functions: ctypes.CDLL

    def kernel(self, name: str) -> int:
        """Address of a kernel. Raises PlatformError if the library has none of that name."""
        symbol = f"hr_{name}_{self._faster(name) or self.isa}"
        if not hasattr(self.functions, symbol):
            symbol = f"hr_{name}_{_UNDER.get(self.isa, self.isa)}"
        try:
            found = ctypes.cast(getattr(self.functions, symbol), ctypes.c_void_p).value
        except AttributeError:
            raise PlatformError(f"{self.path} has no {symbol}: it was built from other sources; {REMEDY}") from None
        assert found is not None
        return found

    @property
    def without_dot(self) -> tuple[str, ...]:
        """Kernels that this processor takes from another instruction set, which compute other bits."""
        return tuple(name for name, isa in _WITHOUT_DOT if isa == self.isa and self._faster(name))

    def _faster(self, name: str) -> str | None:
        """The instruction set whose kernel is taken in the place of the own one."""
        isa = _WITHOUT_DOT.get((name, self.isa))
        found = hasattr(self.functions, f"hr_{name}_{isa}") and self.functions.hr_cpu_has(_SLOW_DOT)
        return isa if found else None


def find() -> Path | None:
    """The path of the library in the package, installed or built in the checkout; None if there is none."""
    for entry in headrace.__path__:
        path = Path(entry) / "_lib" / _NAME
        if path.is_file():
            return path
    return None


def missing() -> str | None:
    """Why the native kernels cannot be used; None if they can. Raises PlatformError for a library of an older or newer
    headrace: the reference operators in its place would hide that."""
    path = find()
    if path is None:
        return (
            "the native kernels were not built (no C++ compiler at install): the reference operators run, many times "
            "slower; install a compiler and then headrace again"
        )
    try:
        _open(path)
    except (OSError, AttributeError) as error:  # built for another machine, or from other sources
        return f"{path} cannot be used ({error}): {REMEDY}"
    return None


def usable() -> list[str]:
    """Instruction sets that the library contains and this processor can run, best first; none without a library."""
    path = find()
    if path is None or missing() is not None:
        return []
    functions = _open(path)
    return [name for name in ISAS if _holds(functions, name) and functions.hr_cpu_has(_LEVEL[name])]


def _holds(functions: ctypes.CDLL, isa: str) -> bool:
    # An instruction set that also uses another one's kernels has at least its own product.
    return all(hasattr(functions, f"hr_{name}") for name in (f"linear_{isa}", f"rms_norm_{_UNDER.get(isa, isa)}"))


def load(isa: str | None = None) -> Library:
    """The library for `isa`, or for the best instruction set that it contains and the processor can run.

    Raises PlatformError if there is none, or if the requested one does not run here.
    """
    reason = missing()
    if reason is not None:
        raise PlatformError(f"cpu: {reason}")
    path = find()
    assert path is not None
    found = usable()
    if isa is not None and isa not in found:
        raise PlatformError(f"cpu: instruction set {isa!r} does not run here: choose one of {', '.join(found)}")
    if not found:
        raise PlatformError(f"cpu: {path} holds no kernels for this processor: {REMEDY}")
    return Library(path, isa or found[0], _open(path))


def describe() -> tuple[tuple[str, str], ...]:
    """For `DeviceInfo.details`: the library and the instruction set in use, or why there is none."""
    try:
        problem = missing()
        if problem is not None:
            return (("native_problem", problem),)
        library = load()
    except PlatformError as error:
        return (("native_problem", str(error)),)
    return (("native_library", str(library.path)), ("instruction_set", library.isa))


@lru_cache(maxsize=4)
def _open(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    found = library.hr_abi() if hasattr(library, "hr_abi") else 0
    if found != ABI:
        raise PlatformError(f"cpu: {path} has version {found} of the kernels' ABI, this headrace has {ABI}: {REMEDY}")
    pointer, integer, ticket = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64
    prototypes: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "hr_team_new": (pointer, (ctypes.c_int32, pointer, integer, integer, integer)),
        "hr_team_close": (None, (pointer,)),
        "hr_team_free": (None, (pointer,)),
        "hr_submit_tape": (ticket, (pointer, pointer, pointer, pointer, integer)),
        "hr_submit_kernel": (ticket, (pointer, pointer, pointer, integer, pointer)),
        "hr_done": (ctypes.c_int32, (pointer, ticket)),
        "hr_wait": (ctypes.c_int32, (pointer, ticket)),
        "hr_busy_ns": (ticket, (pointer,)),
        "hr_busy_at": (ticket, (pointer, ticket)),
        "hr_tape_new": (pointer, ()),
        "hr_tape_add": (ctypes.c_int32, (pointer, pointer, pointer, integer)),
        "hr_tape_free": (None, (pointer,)),
        "hr_tape_profile": (None, (pointer, ctypes.c_int32)),
        "hr_tape_times": (ticket, (pointer, pointer)),
        "hr_copy_blocks": (None, (pointer, pointer)),
        "hr_cpu_has": (ctypes.c_int32, (ctypes.c_int32,)),
    }
    for name, (result, arguments) in prototypes.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
