"""Compile reports: every kernel is compiled for chips that are not present, and compared with a baseline.

For developers; not part of the wheel.

`triton_report` compiles the launches of `shipped` for the chips of `chips`, `pallas_report` the kernels of
`pallas_shipped` for generations of TPU. Importing this package loads neither triton nor JAX.
"""
