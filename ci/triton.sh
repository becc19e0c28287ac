#!/usr/bin/env bash
# Tests the Triton operators without their device: numerics by interpreter for every type and layout, launches through
# Triton's dispatch with a driver that has no device, then every kernel compiled for the named chips, without spills,
# with shared memory within limits and the expected matrix instruction, compared with the checked-in baseline.
#
# Usage: ci/triton.sh CHIPS [file for the result]      ci/cuda.sh and ci/rocm.sh name the chips
#   PYTHON=python3.12   an interpreter with headrace[dev] installed; default .venv/bin/python
# The last line is `N passed, N failed`. Takes a minute for the numerics and about one minute per chip.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
passed=0 failed=0

tally() { # tally EXIT_STATUS: add what the log's last lines count; a step that counts nothing and fails is one failure
  local good bad
  good=$(grep -oE '[0-9]+ passed' "$log" | tail -n 1 | grep -oE '[0-9]+')
  bad=$(grep -oE '[0-9]+ (failed|error)' "$log" | tail -n 1 | grep -oE '[0-9]+')
  [[ $1 -ne 0 && ${bad:-0} -eq 0 ]] && bad=1
  passed=$((passed + ${good:-0})) failed=$((failed + ${bad:-0}))
}

"$python" -c 'import torch, triton; print("torch", torch.__version__, "triton", triton.__version__)' || exit 1

OMP_NUM_THREADS=1 "$python" -m pytest tests/platform/triton -m 'not slow' 2>&1 | tee "$log"
tally "${PIPESTATUS[0]}"

OMP_NUM_THREADS=1 "$python" -m pytest tests/platform/accelerator/test_accelerator_launch.py 2>&1 | tee "$log"
tally "${PIPESTATUS[0]}"

result=()
[[ -n ${2:-} ]] && result=(--write "$2")
PYTHONPATH=tools TRITON_INTERPRET=0 "$python" -W ignore -m compile_report.triton_report --chips "$1" \
  --baseline docs/results/triton-compile.json "${result[@]}" 2>&1 | tee "$log"
tally "${PIPESTATUS[0]}"

echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
