"""Calls of the Python functions that a plan names."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from headrace.errors import HeadraceError, ProgramError, excerpt
from headrace.lang.strict_json import parse_json

__all__ = ["call_tool"]


async def call_tool(tools: Mapping[str, Callable[..., Any]], name: str, args: Mapping[str, Any]) -> Any:
    """Call a function, in a thread if it is no coroutine function, and return its value as JSON. Raises ProgramError,
    and the function's own HeadraceErrors."""
    tool = tools.get(name)
    if tool is None:
        raise ProgramError(f"no function {name!r} was given; there are: {', '.join(sorted(tools)) or 'none'}")
    try:
        if inspect.iscoroutinefunction(tool):
            found = await tool(**args)
        else:
            found = await asyncio.to_thread(tool, **args)
            if inspect.isawaitable(found):
                found = await found
    except HeadraceError:
        raise
    except Exception as error:
        raise ProgramError(f"{name} raised {type(error).__name__}: {error}") from error
    return _as_json(name, found)


def _as_json(tool: str, value: Any) -> Any:
    try:
        return parse_json(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise ProgramError(f"{tool} returned what is no JSON: {excerpt(value, 60)} ({excerpt(str(error))})") from None
