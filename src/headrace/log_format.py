"""The form of log lines on standard error: text, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import time

__all__ = ["FIELDS", "JsonFormatter", "use_json"]

FIELDS = "fields"
"""The attribute of a record that holds its values by name, beside the text."""


class JsonFormatter(logging.Formatter):
    """`time`, `level`, `logger` and `message`, the values of `FIELDS`, and `exception` with the traceback."""

    def __init__(self, process: str = "") -> None:
        """`process`: which of several processes writes; empty: the first."""
        super().__init__()
        self._process = {"process": process} if process else {}

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


def use_json(process: str = "") -> None:
    """Write the lines of this process as JSON from now on. Call it after `logging.basicConfig`."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonFormatter(process))
