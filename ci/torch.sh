#!/usr/bin/env bash
# The suite on another version of torch, in an environment of its own, with the Triton that the suite is held to on this Python: each
# torch asks for another, and the interpreter of 3.5, which 2.9 asks for, does not run on the numpy of today. Compiled chips are
# ci/triton.sh's, and real models the suite's own torch's, so both are left out.
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
# In one call, so that nothing that comes later moves torch.
"$venv/bin/pip" install --quiet --disable-pip-version-check "torch==$version" -e '.[dev]'
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r constraints/triton.txt
"$venv/bin/python" - "$version" <<'PYTHON'
import sys, torch
assert torch.__version__.split("+")[0] == sys.argv[1], torch.__version__
PYTHON
OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest -m 'not real_model' --deselect tests/platform/triton/test_triton_compile.py "$@"
