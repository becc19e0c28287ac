"""Caches the packed weights of a platform on disk for the next start.

`cache.py` finds, loads, saves and evicts files; `content.py` identifies the checkpoint; `tree.py` converts a model's
weights to a header and buffers, and back; `file.py` defines the format of a file.
"""
