"""Architectures: one decoder written once against the operator set, and a small file of names and settings a family."""
