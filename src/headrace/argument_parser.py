"""The parser of every verb's arguments: its errors are one line, like all others."""

from __future__ import annotations

import argparse

from headrace.errors import shortened

__all__ = ["USER_FAULT", "ArgumentParser"]

USER_FAULT = 2
"""The exit code for an error that has been told."""


class ArgumentParser(argparse.ArgumentParser):
    """argparse's, with errors of one line that repeat little of what was given."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(USER_FAULT, f"error: {shortened(message)} (see {self.prog} --help)\n")
