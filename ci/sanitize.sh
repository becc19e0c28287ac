#!/usr/bin/env bash
# The native kernels and their runtime under the address and undefined-behaviour sanitizers: their own build, their own tests.
# Usage: ci/sanitize.sh [instruction sets, default all that the compiler builds]
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
build=build/sanitize
cmake -S . -B "$build" -G Ninja -DHEADRACE_SANITIZE=ON -DHEADRACE_OPS= -DHEADRACE_ISAS="${1:-}" >/dev/null
cmake --build "$build" --target headrace_cpu
runtime=$("${CXX:-c++}" -print-file-name=libasan.so):$("${CXX:-c++}" -print-file-name=libubsan.so)
# Python and torch keep memory to the end on purpose, so leaks are not looked for.
LD_PRELOAD=$runtime ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
  PYTHONPATH=ci OMP_NUM_THREADS=1 "$python" -m pytest -p native_library --native-library "$build/libheadrace_cpu.so" \
  tests/platform/cpu/test_native_*.py
