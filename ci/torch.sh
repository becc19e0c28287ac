#!/usr/bin/env bash
# Runs the suite on another version of torch, in a separate environment, with the Triton version that the suite uses on
# this Python. Each torch requires another Triton, and the interpreter of 3.5, which torch 2.9 requires, does not run on
# today's numpy. Compilation for chips (ci/triton.sh) and real models (the suite's own torch) are left out.
#
# Usage: ci/torch.sh VERSION [pytest arguments, default: the whole suite]
#   PYTHON=python3.12   the interpreter
# The last line of the standard output is pytest's.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?which version of torch, say 2.9.1}
shift
venv=build/torch-$version
[[ -x $venv/bin/python ]] || "${PYTHON:-python3}" -m venv "$venv"
# In one call, so that a later install cannot change torch.
"$venv/bin/pip" install --quiet --disable-pip-version-check "torch==$version" -e '.[dev]'
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r constraints/triton.txt
"$venv/bin/python" - "$version" <<'PYTHON'
import sys, torch
assert torch.__version__.split("+")[0] == sys.argv[1], torch.__version__
PYTHON
OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest -m 'not real_model' \
  --deselect tests/platform/triton/test_triton_compile.py "$@"
