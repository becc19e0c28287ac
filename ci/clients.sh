#!/usr/bin/env bash
# Clients that use tools and structured outputs, each from its own distribution, against the default model: the scripts
# of tests/clients. The server runs from the checkout's environment, the clients in a fresh one.
#
# Usage: ci/clients.sh [folder for the environment, default build/clients]
#   PYTHON=python3.12   the interpreter of the clients
# The last line is `N passed, N failed`.
set -uo pipefail
cd "$(dirname "$0")/.."
work=${1:-build/clients}
mkdir -p "$work"
[[ -x $work/venv/bin/python ]] || "${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check openai anthropic ollama llm instructor langchain-openai \
  'pydantic-ai-slim[openai]' llama-index-llms-openai-like || exit 1

.venv/bin/headrace serve smollm2 --port 0 --max-model-len 2048 >"$work/server.log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null' EXIT
url=
for _ in $(seq 300); do
  url=$(grep -oE '//127\.0\.0\.1:[0-9]+' "$work/server.log" | head -n 1)
  [[ -n $url ]] && break
  kill -0 $server 2>/dev/null || { tail -n 20 "$work/server.log"; exit 1; }
  sleep 1
done

passed=0 failed=0
for script in tests/clients/[!t]*.py; do
  begun=$SECONDS
  if timeout 300 "$work/venv/bin/python" "$script" "http:$url" >"$work/client.log" 2>&1; then
    passed=$((passed + 1))
    echo "ok      $(basename "$script" .py) ($((SECONDS - begun)) s)"
  else
    failed=$((failed + 1))
    echo "FAILED  $(basename "$script" .py)"
    tail -n 30 "$work/client.log"
  fi
done
echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
