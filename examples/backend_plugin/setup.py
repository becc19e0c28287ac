"""Builds `csrc/device.cpp` against the torch that is installed: the library fits that torch and no other."""

from __future__ import annotations

import os
import shutil
import sys

from setuptools import setup

HOW = "pip install --no-build-isolation ./examples/backend_plugin"

try:
    from torch.utils.cpp_extension import BuildExtension, CppExtension
except ImportError as error:
    sys.exit(f"headrace-example: no torch to build against ({error}). Install torch, then: {HOW}")

compiler = os.environ.get("CXX", "c++")
if shutil.which(compiler.split()[0]) is None:
    sys.exit(
        f"headrace-example: no C++ compiler ({compiler}). Install one (Debian: apt install g++) or set CXX, then: {HOW}"
    )

setup(
    ext_modules=[
        CppExtension("headrace_example._device", ["csrc/device.cpp"], extra_compile_args=["-O3", "-fvisibility=hidden"])
    ],
    cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True, use_ninja=False)},
)
