"""Architectures: one decoder, written against the operator set, and a small file of names and settings per family."""
