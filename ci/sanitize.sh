#!/usr/bin/env bash
# Tests the native kernels and their runtime under the sanitizers, in separate builds: every operator, the tape and the
# team. First address and undefined behaviour: calls from a file (replay.cpp), in which every buffer ends at the end of
# its memory, then the tests from Python. Then threads: only the replay, because Python and torch have their own races.
#
# Usage: ci/sanitize.sh [instruction sets separated by semicolons, default all that the compiler builds and run here]
# The last line is `N passed, N failed`.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
isas=${1:-}
build=build/sanitize
passed=0 failed=0
mkdir -p "$build"

. ci/tally.bash

make_with() { # make_with SANITIZERS FOLDER
  cmake -S . -B "$2" -G Ninja -DHEADRACE_SANITIZE="$1" -DHEADRACE_OPS= -DHEADRACE_ISAS="$isas" >/dev/null
  cmake --build "$2" --target headrace_cpu replay
}

replay() { # replay FOLDER: every instruction set of the library that runs here
  local isa
  for isa in $(nm -D --defined-only "$1/libheadrace_cpu.so" | grep -oP ' hr_rms_norm_\K\w+$' | sort -u); do
    echo "$1, $isa"
    "$1/replay" "$1/libheadrace_cpu.so" "$isa" "$build/cases" 2>&1 | tee "$build/log" | tail -n 40 || true
    if grep -q 'does not run here' "$build/log"; then continue; fi
    tally "$build/log"
  done
}

export OMP_NUM_THREADS=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 TSAN_OPTIONS=halt_on_error=1
# Python and torch intentionally don't release some memory, so only the replay is checked for leaks.
PYTHONPATH=tests/platform/cpu "$python" tests/platform/cpu/native_cases.py "$build/cases"
make_with address,undefined "$build/address"
replay "$build/address"

runtime=$("${CXX:-c++}" -print-file-name=libasan.so):$("${CXX:-c++}" -print-file-name=libubsan.so)
LD_PRELOAD=$runtime ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 PYTHONPATH=ci "$python" -m pytest -p native_library \
  --native-library "$build/address/libheadrace_cpu.so" tests/platform/cpu/test_native_*.py 2>&1 |
  tee "$build/log" || true
tally "$build/log"

isas=generic
make_with thread "$build/thread"
replay "$build/thread"
echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
