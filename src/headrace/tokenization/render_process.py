"""The process that renders chat templates: `python -m headrace.tokenization.render_process LINK PARENT`.

LINK is a connected stream socket's file descriptor, PARENT the process that started this one. A template comes with a
checkpoint from any source. It may run forever or fill the memory in ways that no check inside the interpreter catches,
such as one comparison of nested lists. Here the kernel enforces the limits: each job has an amount of processor time,
after which the process is killed, and the address space is limited.

The first frame holds the templates and the memory limit, each further frame a job; the answer has one frame per text.
Only the modules that rendering needs are imported: a killed process is replaced, and the next request may wait for the
start of the new one.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jinja2

from headrace.tokenization.render_frames import FAULT, MAX_TEXT, REFUSAL, TEXT, read_frame, send_frame
from headrace.tokenization.sandbox import TemplateRefusal, TemplateSandbox

__all__ = ["Templates", "main"]

_PR_SET_PDEATHSIG = 1
_LONGEST = 300
"""Characters of an error's text that are passed on."""
_KEEP = 256 << 20
"""Bytes of memory. A process that uses more after a job ends, which also releases what the allocator holds."""


def main(arguments: list[str]) -> None:
    """Serve jobs until the other end closes the link."""
    _die_with(int(arguments[1]))
    # A terminal or a supervisor signals all processes of the group; the parent ends this one when it needs it no more.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    link = socket.socket(fileno=int(arguments[0]))
    with contextlib.suppress(ConnectionError, MemoryError):
        setup = read_frame(link)
        if setup is not None:
            _serve(link, json.loads(setup[2]))


def _serve(link: socket.socket, setup: Mapping[str, Any]) -> None:
    templates, memory = Templates(setup["templates"]), _MemoryUse()
    _limit(resource.RLIMIT_AS, memory.used()[0] + setup["memory"])
    _limit(resource.RLIMIT_CORE, 0)
    os.nice(setup.get("nice", 0))
    gc.freeze()
    while (frame := read_frame(link)) is not None:
        try:
            job = json.loads(frame[2])
        except (RecursionError, MemoryError):
            send_frame(link, b"the messages are too large or nest too deeply", FAULT, last=True)
            return
        # The default action of SIGPROF ends the process, even in the middle of a native call.
        signal.setitimer(signal.ITIMER_PROF, job["seconds"])
        for left, variables in zip(range(len(job["renders"]) - 1, -1, -1), job["renders"], strict=True):
            kind, text = templates.render(job["template"], variables)
            last = text is None or (not left and memory.used()[1] > _KEEP)
            content = f"it needs more than {setup['memory'] >> 20} MiB of memory" if text is None else text
            if kind != TEXT:
                content = " ".join(content[:_LONGEST].split())
            send_frame(link, content.encode("utf-8", "surrogatepass"), kind, last)
            if last:
                return
        signal.setitimer(signal.ITIMER_PROF, 0)


class Templates:
    """The templates of one checkpoint, each compiled when it is first needed."""

    def __init__(self, sources: list[str]) -> None:
        sandbox = TemplateSandbox()
        self.compiled = lru_cache(lambda index: sandbox.from_string(sources[index]))

    def render(self, index: int, variables: Mapping[str, Any] | None) -> tuple[int, str | None]:
        """(kind, text). Without variables the template is only compiled. The text is None if memory ran out."""
        try:
            template = self.compiled(index)
            text = "" if variables is None else template.render(variables)
        except MemoryError:
            return FAULT, None
        except TemplateRefusal as error:
            return REFUSAL, str(error)
        except Exception as error:  # Whatever an expression raises is the template's fault.
            return FAULT, _reason(error)
        if len(text) > MAX_TEXT:
            return FAULT, f"it makes more text than the {MAX_TEXT} characters that are allowed"
        return TEXT, text


def _reason(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"line {error.lineno}: {error.message}"
    if isinstance(error, jinja2.TemplateError):
        return str(error)
    if isinstance(error, RecursionError):
        return "it nests too deeply"
    return f"{type(error).__name__}: {error}"


class _MemoryUse:
    """Reads this process's memory use, on systems that report it at little cost."""

    def __init__(self) -> None:
        self._file = os.open("/proc/self/statm", os.O_RDONLY) if sys.platform == "linux" else None

    def used(self) -> tuple[int, int]:
        """Bytes of address space, and of memory that is resident now. (The peak that `getrusage` reports may be the
        parent's.)"""
        if self._file is None:
            return 0, 0
        size, resident, *_ = os.pread(self._file, 100, 0).split()
        return int(size) * resource.getpagesize(), int(resident) * resource.getpagesize()


def _limit(limit: int, wanted: int) -> None:
    hard = resource.getrlimit(limit)[1]
    # Some systems refuse a limit of the address space; the time limit still applies there.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(limit, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _die_with(parent: int) -> None:
    """End this process with its parent. Linux kills it, even while it is stopped; elsewhere it ends with the link."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
