#!/usr/bin/env bash
# Random plans, traced and mutated, with a fake model and on the real scheduler: each ends or is refused with its node,
# and no block is lost.
#
# Usage: ci/program_fuzz.sh [plans, default 10000: about half an hour]
set -euo pipefail
cd "$(dirname "$0")/.."
HEADRACE_LANG_FUZZ=${1:-10000} .venv/bin/python -m pytest -q tests/unit/engine/test_program_fuzz.py \
    tests/unit/lang/test_lang_fuzz.py
