"""Engines of one model, as many as are needed: started, watched, replaced, on this machine or on a Ray cluster."""

from __future__ import annotations
