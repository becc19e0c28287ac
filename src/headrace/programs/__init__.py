"""Programs of `headrace.lang` on an engine: states as token ids, and sequences that stay open between generations."""

from headrace.programs.engine_backend import EngineBackend

__all__ = ["EngineBackend"]
