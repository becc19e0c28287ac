#!/usr/bin/env bash
# Tests the ROCm platform's kernels without an AMD device; see ci/triton.sh for the environment and the output.
#
# Usage: ci/rocm.sh [file for the result]
exec "$(dirname "$0")/triton.sh" gfx90a,gfx942,gfx950,gfx1100,gfx1201 "$@"
