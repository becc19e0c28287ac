#!/usr/bin/env bash
# Tests the TPU platform without a TPU: the Pallas kernels' numerics and races by interpreter; every kernel compiled by
# libtpu for each generation, with caches written in place, compared with the checked-in baseline; the engine on XLA's
# CPU backend, with the CPU platform's tokens and one compilation per bucket; the conformance kit on that backend.
#
# Usage: ci/tpu.sh [folder of the environment, default build/tpu; 9 GB] [file for the compile report]
#   PYTHON=python3.11   the interpreter of the environment (torch-xla 2.9: 3.10 to 3.13; Pallas needs 3.11)
#   CHIPS=v5e,v6e       fewer generations
#   EXAMPLES=12         calls of each operator and type in the kit (default 4: every shape is compiled)
# An existing environment is used. The last line is `N passed, N failed`. Takes about half an hour on two cores.
set -uo pipefail
cd "$(dirname "$0")/.."
work=${1:-build/tpu} report=${2:-} chips=${CHIPS:-v5e,v5p,v6e,7x} examples=${EXAMPLES:-4}
mkdir -p "$work" || exit 1
work=$(cd "$work" && pwd)
python=$work/bin/python
log=$work/step.log
passed=0 failed=0

tally() { # tally EXIT_STATUS: add what the log's last lines count; a step that counts nothing and fails is one failure
  local good bad
  good=$(grep -oE '[0-9]+ passed' "$log" | tail -n 1 | grep -oE '[0-9]+')
  bad=$(grep -oE '[0-9]+ (failed|error)' "$log" | tail -n 1 | grep -oE '[0-9]+')
  [[ $1 -ne 0 && ${bad:-0} -eq 0 ]] && bad=1
  passed=$((passed + ${good:-0})) failed=$((failed + ${bad:-0}))
}

if [[ ! -x $python ]]; then
  "${PYTHON:-python3}" -m venv "$work" || exit 1
fi
# Install the torch that torch-xla is built for; torchax, which calls JAX, needs flax.
"$python" -m pip install -q 'torch==2.9.1' 'torch-xla[pallas,tpu]==2.9.0' flax pytest hypothesis || exit 1
# Without the native kernels, because this job tests another device.
SKBUILD_WHEEL_CMAKE=false "$python" -m pip install -q . || exit 1

export OMP_NUM_THREADS=1
JAX_PLATFORMS=cpu "$python" -m pytest tests/platform/tpu/test_pallas_numerics.py 2>&1 | tee "$log"
tally "${PIPESTATUS[0]}"

more=()
[[ -n $report ]] && more=(--write "$report")
compile() { # compile PYTHON CHIPS
  PYTHONPATH=src:tools "$1" -W ignore -m compile_report.pallas_report --chips "$2" \
    --baseline docs/results/tpu-compile.json "${more[@]}" 2>&1 | tee "$log"
  tally "${PIPESTATUS[0]}"
}
older=$(tr , '\n' <<<"$chips" | grep -v '^7x$' | paste -sd,)
[[ -n $older ]] && compile "$python" "$older"
if [[ ,$chips, == *,7x,* ]]; then # the libtpu that torch-xla 2.9 asks for does not know it yet
  newer=$work/mosaic
  [[ -x $newer/bin/python ]] || "$python" -m venv "$newer" || exit 1
  "$newer/bin/python" -m pip install -q 'jax[tpu]>=0.10' || exit 1
  compile "$newer/bin/python" 7x
fi

PJRT_DEVICE=CPU timeout 600 "$python" ci/tpu_engine.py "$work" 2>&1 | tee "$log"
tally "${PIPESTATUS[0]}"

PJRT_DEVICE=CPU timeout 3600 "$python" -m headrace.cli.main conformance tpu --examples "$examples" --verbose 2>&1 |
  tee "$log"
tally "${PIPESTATUS[0]}"

echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
