"""Checkpoints: a Hugging Face directory or a GGUF file, read by memory map."""

from headrace.engine.loading.checkpoint import Checkpoint, open_checkpoint

__all__ = ["Checkpoint", "open_checkpoint"]
