#!/usr/bin/env bash
# Tests the CUDA platform's kernels without an NVIDIA device; see ci/triton.sh for the environment and the output.
#
# Usage: ci/cuda.sh [file for the result]
exec "$(dirname "$0")/triton.sh" sm_80,sm_89,sm_90,sm_100,sm_120 "$@"
