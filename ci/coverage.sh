#!/usr/bin/env bash
# Measures the coverage of src/headrace/platforms by its tests, without a device and without the slow tests: at least
# 90 % in all and of every file. Lines that need a device count like all others.
#
# Usage: ci/coverage.sh [folder for the reports, default build/coverage] [more pytest arguments]
#   PYTHON=python3.12   an interpreter with headrace's dev extra; default .venv/bin/python
# The last line is `N of N files at 90 % or more`.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
work=${1:-build/coverage}
shift $(($# > 0))
least=90
mkdir -p "$work"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} COVERAGE_FILE=$work/data

# What tests the operators' compilers, the kit itself and the example's own code says nothing of the platforms.
"$python" -m pytest -m 'not slow and not real_model' tests/platform \
  --ignore tests/platform/triton --ignore tests/platform/conformance --ignore tests/platform/example \
  --cov headrace.platforms --cov-fail-under $least --cov-report term-missing \
  --cov-report "json:$work/coverage.json" "$@"
passed=$?
"$python" - "$work/coverage.json" $least <<'PYTHON' || passed=1
import json, sys
files = json.load(open(sys.argv[1]))["files"]
shares = {name: entry["summary"]["percent_covered"] for name, entry in files.items()}
least = float(sys.argv[2])
for name, share in sorted(shares.items()):
    if share < least:
        print(f"{share:5.1f} % {name}: below {least:.0f} %")
enough = sum(share >= least for share in shares.values())
print(f"{enough} of {len(shares)} files at {least:.0f} % or more")
sys.exit(enough < len(shares))
PYTHON
exit $passed
