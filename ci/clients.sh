#!/usr/bin/env bash
# The fourteen clients of docs/results/clients.md against a server of this checkout, each from its own distribution in an
# environment of its own: the scripts of tests/clients. The server runs from the checkout's environment.
#
# Usage: ci/clients.sh [--only NAME[,NAME…]] [--table FILE] [--work FOLDER, default build/clients]
#   PYTHON=python3.12   the interpreter of the clients
# The last line is `N passed, N failed, N not installed`.
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python ci/clients.py "$@"
