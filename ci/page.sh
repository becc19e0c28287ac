#!/usr/bin/env bash
# The page at `/`: its scripts in node, and all of it in headless Chromium against a server with a fake engine. Playwright,
# which brings node, is installed beside the checkout's environment, not into it.
#
# Usage: ci/page.sh [folder for Playwright, default build/page] [more pytest arguments]
#   PYTHON=python3.12   an interpreter with headrace's dev extra; default .venv/bin/python
#   CHROMIUM=/usr/bin/chromium   the browser; default: one on the PATH, or else the one that Playwright downloads
# The last line is `N passed, N failed`.
set -uo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
work=${1:-build/page}
shift $(($# > 0))
mkdir -p "$work"
work=$(cd "$work" && pwd)
[[ -d $work/site/playwright ]] ||
  "$python" -m pip install --quiet --disable-pip-version-check --target "$work/site" playwright || exit 1
export PYTHONPATH=$work/site:$PWD/src

if [[ -z ${CHROMIUM:-} ]]; then
  CHROMIUM=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
fi
if [[ -z $CHROMIUM ]]; then
  "$python" -m playwright install --with-deps chromium || {
    echo "no browser: put Chromium on the PATH (Debian: apt-get install chromium), or name one with CHROMIUM=" >&2
    exit 1
  }
fi
export CHROMIUM

"$work/site/playwright/driver/node" --test tests/page/page_scripts.mjs | tee "$work/scripts.log"
"$python" -m pytest tests/page/check_page_*.py --timeout=300 -rA --tb=short "$@" | tee "$work/browser.log"

count() { # count WORD PATTERN: of both runs
  local scripts browser
  scripts=$(grep -oE "^[#ℹ] $1 [0-9]+" "$work/scripts.log" | grep -oE '[0-9]+$')
  browser=$(grep -cE "^$2" "$work/browser.log")
  echo $((${scripts:-0} + ${browser:-0}))
}
passed=$(count pass 'PASSED ') failed=$(count fail '(FAILED|ERROR) ')
echo "$passed passed, $failed failed"
[[ $failed -eq 0 && $passed -gt 40 ]]
