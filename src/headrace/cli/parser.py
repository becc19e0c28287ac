"""The parser of the command line's options."""

from __future__ import annotations

import argparse

__all__ = ["Parser"]

_USER_FAULT = 2


class Parser(argparse.ArgumentParser):
    """Errors are told as all others are: in one line."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(_USER_FAULT, f"error: {message} (see {self.prog} --help)\n")
