#!/usr/bin/env bash
# Random plans, traced and mutated, with a fake model and on the real scheduler: each ends or is refused with its node,
# and no block is lost. They are drawn by a thousand, with a process for each core.
#
# Usage: ci/program_fuzz.sh [plans, default 10000: about a quarter of an hour of a core]
set -euo pipefail
cd "$(dirname "$0")/.."
export PLANS=${1:-10000}
draw() {
    local first=$1 count=$((PLANS - $1 < 1000 ? PLANS - $1 : 1000)) said
    said=$(HEADRACE_LANG_FUZZ=$count HEADRACE_LANG_FUZZ_FIRST=$first .venv/bin/python -m pytest --no-header \
        -p no:cacheprovider tests/unit/engine/test_program_fuzz.py tests/unit/lang/test_lang_fuzz.py 2>&1) || {
        echo "$said"
        return 1
    }
    echo "plans $first to $((first + count - 1)): passed"
}
export -f draw
seq 0 1000 $((PLANS - 1)) | xargs -P "$(nproc)" -I FIRST bash -c 'draw FIRST'
