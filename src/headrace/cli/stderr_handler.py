"""A handler of logs that finds stderr anew for each line: a progress bar replaces it while it is drawn."""

from __future__ import annotations

import logging
import sys

__all__ = ["StderrHandler"]


class StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)
