"""Logging to stderr, at the level of HEADRACE_LOG."""

from __future__ import annotations

__all__ = ["set_up_logging"]


def set_up_logging(quiet: bool = False) -> None:
    """`quiet`: what is for information alone is left out, since an answer is being shown. Raises ConfigError for a level that
    isn't one."""
    import logging

    from headrace.config import read_environment

    level = read_environment().log_level
    level = "warning" if quiet and level == "info" else level
    # Libraries are heard where something is wrong, or everything is wanted.
    others = "warning" if level == "info" else level
    logging.basicConfig(level=others.upper(), format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("headrace").setLevel(level.upper())
