#!/usr/bin/env bash
# Tests the XPU platform without an Intel GPU: numerics of the Triton operators by interpreter, the platform's code on
# the fake device, and, with Intel's fork of Triton, launches with a driver that has no device and every kernel as
# SPIR-V. The fork's only wheel is a beta for an older Triton than ours, installed in a separate folder: kernels that it
# cannot compile are shown, and fail the script only if STRICT=1.
#
# Usage: ci/xpu.sh [file for the SPIR-V report]
#   PYTHON=python3.12   an interpreter with headrace[dev] installed; default .venv/bin/python
# The last line is `N passed, N failed`.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
fork=triton-xpu==3.3.0b1
site=build/xpu/site
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
passed=0 failed=0

count() { # count WORDS: the number before them in the log
  grep -oE "[0-9]+ ($1)" "$log" | tail -n 1 | grep -oE '[0-9]+' || echo 0
}

tests() { # tests PYTEST_ARGUMENTS...: a run that counts nothing and fails is one failure
  OMP_NUM_THREADS=1 "$python" -m pytest "$@" 2>&1 | tee "$log"
  local code=${PIPESTATUS[0]} bad
  bad=$(count 'failed|error')
  [[ $code -ne 0 && $bad -eq 0 ]] && bad=1
  passed=$((passed + $(count passed))) failed=$((failed + bad))
}

tests tests/platform/triton -m 'not slow'
tests tests/platform/xpu tests/platform/accelerator -k 'xpu'

if [[ -d $site ]] || "$python" -m pip install --quiet --no-deps --target "$site" "$fork"; then
  PYTHONPATH=$site tests tests/platform/accelerator/test_accelerator_launch.py -k xpu
  PYTHONPATH=$site:tools TRITON_CACHE_DIR=build/xpu/cache TRITON_INTERPRET=0 \
    "$python" -W ignore ci/xpu_spirv.py ${1:+"$1"} 2>&1 | tee "$log"
  passed=$((passed + $(count passed)))
  [[ ${STRICT:-0} == 1 ]] && failed=$((failed + $(count refused)))
else
  echo "SPIR-V: $fork has no wheel for this interpreter; left out"
fi

echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
