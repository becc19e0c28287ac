"""Operators: one folder each, with a spec, a reference in plain torch and the fast forms that platforms bind.

`registry.OPS` lists them and `registry.bind` binds them to a device. Importing this package loads no torch.
"""
