"""Blocks of the KV cache in host memory and on a disk. Each tier is a `core.block_source.BlockSource`."""
