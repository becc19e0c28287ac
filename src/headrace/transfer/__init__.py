"""Blocks of the KV cache outside the device: their names, their form in bytes, and where they lie."""
