#!/usr/bin/env bash
# Tests the AMX kernels without a processor that supports AMX. The real kernels are compiled and disassembled
# (test_native_amx.py runs them instruction by instruction). The same sources with the tile instructions in plain C++
# (tests/platform/cpu/amx_emulated.h) run every test of products: first under the sanitizers from a file of calls
# (replay.cpp), in which every buffer ends at the end of its memory, then from Python, against the references and for
# equal bits.
#
# Usage: ci/amx.sh [instruction set of the vectors: v4bf16, v4, v3 or generic; default the best that runs here]
# The last line is `N passed, N failed`.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
best='from headrace.platforms.cpu import native; print(next(n for n in native.usable() if n != "amx"))'
base=${1:-$("$python" -c "$best")}
build=build/amx
passed=0 failed=0
mkdir -p "$build"

. ci/tally.bash

make_with() { # make_with FOLDER INSTRUCTION_SETS [SANITIZERS]
  cmake -S . -B "$1" -G Ninja -DHEADRACE_ISAS="$2" -DHEADRACE_EMULATE_AMX_ON="$base" \
    -DHEADRACE_SANITIZE="${3:-}" >/dev/null
  cmake --build "$1" --target headrace_cpu replay
}

export OMP_NUM_THREADS=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
make_with "$build/plain" "$base;amx"
objdump -d --no-show-raw-insn "$build/plain/libheadrace_cpu.so" | grep -oE '\b(tdp|tile|ldtile)\w+' |
  sort | uniq -c | tee "$build/log"
for name in ldtilecfg tilerelease tileloadd tilestored tdpbf16ps tdpbssd tdpbsud; do
  if grep -qw "$name" "$build/log"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done

PYTHONPATH=tests/platform/cpu "$python" tests/platform/cpu/native_cases.py "$build/cases"
make_with "$build/address" "$base" address,undefined
"$build/address/replay" "$build/address/libheadrace_cpu.so" "amxemu+$base" "$build/cases" 2>&1 |
  tee "$build/log" | tail -n 40 || true
tally "$build/log"

PYTHONPATH=ci "$python" -m pytest -p native_library \
  --native-library "$build/plain/libheadrace_cpu.so" --emulated-amx-on "$base" \
  tests/platform/cpu/test_native_{linear,gated_linear,moe,bits,kernels,tape}.py 2>&1 | tee "$build/log" || true
tally "$build/log"
echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
