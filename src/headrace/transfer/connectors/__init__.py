"""Connectors: they move sealed blocks of the KV cache from one process to another."""
