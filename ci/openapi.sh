#!/usr/bin/env bash
# Sends schemathesis's cases for every operation of /openapi.json to a server with a tiny random model: no 5xx, no status
# that the document lacks, no answer of another form. Fixed seeds. The server runs from the checkout's environment,
# schemathesis in one of its own.
#
# Usage: ci/openapi.sh [CASES, default 3000] [SEED, default 1]
#   PYTHON=python3.12   the interpreter of schemathesis
set -uo pipefail
cd "$(dirname "$0")/.."
cases=${1:-3000} seed=${2:-1} work=build/openapi
mkdir -p "$work"
[[ -x $work/venv/bin/schemathesis ]] || {
  "${PYTHON:-python3}" -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet --disable-pip-version-check schemathesis || exit 1
}
exec .venv/bin/python ci/openapi.py "$work" "$cases" "$seed"
