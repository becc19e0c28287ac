#!/usr/bin/env bash
# Ten thousand random plans, traced and mutated, on the real scheduler: about half an hour.
#     ci/program_fuzz.sh [COUNT]
set -euo pipefail
cd "$(dirname "$0")/.."
HEADRACE_LANG_FUZZ=${1:-10000} .venv/bin/python -m pytest -q tests/unit/engine/test_program_fuzz.py tests/unit/lang/test_lang_fuzz.py
