"""Logging to stderr, at the level of HEADRACE_LOG."""

from __future__ import annotations

__all__ = ["set_up_logging"]


def set_up_logging(quiet: bool = False) -> None:
    """Set up logging. `quiet` leaves out the level info, for commands that show an answer. Raises ConfigError for an
    invalid level."""
    import logging

    from headrace.cli.stderr_handler import StderrHandler
    from headrace.environment import read_environment

    level = read_environment().log_level
    level = "warning" if quiet and level == "info" else level
    # Other libraries log warnings only, unless the user chose another level than info.
    others = "warning" if level == "info" else level
    logging.basicConfig(level=others.upper(), format="%(levelname)s %(name)s: %(message)s", handlers=[StderrHandler()])
    logging.getLogger("headrace").setLevel(level.upper())
