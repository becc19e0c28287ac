"""Codebooks: the sixteen values of 4-bit codes, for formats whose values are not evenly spaced."""

from __future__ import annotations

__all__ = ["FP4_VALUES", "IQ4_VALUES"]

FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""E2M1 of the OCP Microscaling Formats specification 1.0: a sign bit, two exponent bits, one mantissa bit."""
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""GGUF's IQ4_NL and IQ4_XS, from the GGML format description."""
