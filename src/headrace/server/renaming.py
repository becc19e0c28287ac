"""Errors of the internal form under the names of the API that was called."""

from __future__ import annotations

import re
from collections.abc import Mapping

from starlette.types import Scope

from headrace.server.http_errors import HttpError

__all__ = ["rename_fields", "renamed"]

_KEY = "headrace.field_names"
_QUOTED = re.compile(r"(?<=`)[\w.\[\]]+(?=`)")


def rename_fields(scope: Scope, names: Mapping[str, str]) -> None:
    """From now on errors of this request name the fields so, and others as before. `names`: by the internal path, or
    its beginning."""
    scope[_KEY] = {**scope.get(_KEY, {}), **names}


def renamed(error: HttpError, scope: Scope) -> HttpError:
    names: Mapping[str, str] | None = scope.get(_KEY)
    if not names or error.status >= 500:
        return error
    message = _QUOTED.sub(lambda found: _outer(found[0], names), error.message)
    param = None if error.param is None else _outer(error.param, names)
    return HttpError(error.status, message, kind=error.kind, param=param, code=error.code, headers=error.headers)


def _outer(path: str, names: Mapping[str, str]) -> str:
    for inner, outer in names.items():
        if path == inner or path.startswith((f"{inner}.", f"{inner}[")):
            return outer + path[len(inner) :]
    return path
