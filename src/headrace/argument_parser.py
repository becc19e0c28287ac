"""The argument parser of every verb: its errors are one line, like all errors of the command."""

from __future__ import annotations

import argparse

from headrace.errors import shortened

__all__ = ["USER_FAULT", "ArgumentParser"]

USER_FAULT = 2
"""The exit code after an error that has been shown."""


class ArgumentParser(argparse.ArgumentParser):
    """argparse's parser with errors of one line, in which long arguments are shortened."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(USER_FAULT, f"error: {shortened(message)} (see {self.prog} --help)\n")
