#!/usr/bin/env bash
# Tests one of the extras: it installs with a torch that Headrace supports, its requirements have no conflict, and the
# platforms are still found, each with its reason.
#
# Usage: ci/extra.sh NAME
#   PYTHON=python3.12   the interpreter
set -euo pipefail
cd "$(dirname "$0")/.."
extra=${1:?which extra of pyproject.toml}
venv=build/extra-$extra
[[ -x $venv/bin/python ]] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check ".[$extra]"
"$venv/bin/pip" check
cd "$venv" # away from the checkout: what is imported now is what was installed
bin/headrace doctor --json >doctor.json
bin/python - <<'PYTHON'
import json
report = json.load(open("doctor.json"))
broken = [plugin for plugin in report["plugins"] if plugin["error"]]
assert report["usable"] and not broken, (report["remedies"], broken)
for platform in report["platforms"]:
    assert platform["reason"], platform
    print(platform["name"], platform["score"], platform["reason"])
PYTHON
