"""The form of log lines on standard error: text, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import time

__all__ = ["FIELDS", "JsonFormatter", "name_lines", "use_json"]

FIELDS = "fields"
"""The attribute of a record that holds its values by name, beside the text."""


class JsonFormatter(logging.Formatter):
    """`time`, `level`, `logger` and `message`, the values of `FIELDS`, and `exception` with the traceback."""

    def __init__(self, process: str = "", model: str = "") -> None:
        """`process`: which of several processes writes; empty: the first. `model`: the one that it computes."""
        super().__init__()
        named = {"process": process, "model": model}
        self._process = {name: value for name, value in named.items() if value}

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._process,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def use_json(process: str = "", model: str = "") -> None:
    """Write the lines of this process as JSON from now on. Call it after `logging.basicConfig`."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonFormatter(process, model))


def name_lines(process: str, model: str, as_json: bool) -> None:
    """Let the lines of this process say which one it is, and of which model if that has a name."""
    if as_json:
        use_json(process, model)
        return
    who = f"{process} {model}".strip().replace("%", "%%")
    for handler in logging.getLogger().handlers:
        handler.setFormatter(logging.Formatter(f"%(levelname)s {who}: %(message)s"))
