#!/usr/bin/env bash
# The suite on another version of torch, in an environment of its own. Compiled chips are held to one Triton by ci/triton.sh
# instead, and real models to the suite's own torch, so both are left out.
#
# Usage: ci/torch.sh VERSION [pytest arguments, default: the whole suite]
#   PYTHON=python3.12   the interpreter
# The last line is pytest's.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?which version of torch, say 2.9.1}
shift
venv=build/torch-$version
[[ -x $venv/bin/python ]] || "${PYTHON:-python3}" -m venv "$venv"
# In one call, so that nothing that comes later moves torch.
"$venv/bin/pip" install --quiet --disable-pip-version-check "torch==$version" -e '.[dev]'
"$venv/bin/python" - "$version" <<'PYTHON'
import sys, torch
assert torch.__version__.split("+")[0] == sys.argv[1], torch.__version__
PYTHON
OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest -m 'not real_model' --deselect tests/platform/triton/test_triton_compile.py "$@"
