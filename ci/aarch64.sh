#!/usr/bin/env bash
# Tests the native kernels on 64-bit Arm: cross-compiles them and runs them under qemu against the references' results.
# No Arm Python is needed: native_cases.py writes every operator's calls and results on this machine, replay.cpp runs
# them under qemu, on teams of one to three threads.
#
# Usage: ci/aarch64.sh [folder for the build, default build/aarch64]
#   PYTHON=python3.12     an interpreter with headrace[dev] installed; default .venv/bin/python
#   CXX=...               default aarch64-linux-gnu-g++ (Debian: g++-aarch64-linux-gnu); needs qemu-user-static, too
# The last line is `N passed, N failed`.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
cxx=${CXX:-aarch64-linux-gnu-g++}
build=${1:-build/aarch64}
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || {
  echo "ci/aarch64.sh: no qemu-aarch64 on the path: install qemu-user-static" >&2
  exit 1
}
sysroot=$("$cxx" -print-sysroot)
[[ -n $sysroot && $sysroot != / ]] || sysroot=/usr/aarch64-linux-gnu

cmake -S . -B "$build" -G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER="$cxx" >/dev/null
cmake --build "$build" --target headrace_cpu replay
OMP_NUM_THREADS=1 PYTHONPATH=tests/platform/cpu "$python" tests/platform/cpu/native_cases.py "$build/cases"

passed=0 failed=0
run() { # run PROCESSOR INSTRUCTION_SET
  local counts
  echo "$2 on $1"
  "$qemu" -cpu "$1" -L "$sysroot" "$build/replay" "$build/libheadrace_cpu.so" "$2" "$build/cases" |
    tee "$build/log" || true
  counts=$(tail -n 1 "$build/log")
  if [[ $counts =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
    passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
  else
    failed=$((failed + 1)) # it ended before it could count
  fi
}
run cortex-a53 generic # the first of its kind: no dot products, no half-precision arithmetic
run neoverse-n1 dotprod
echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
