#!/usr/bin/env bash
# Tests out-of-tree devices from their own distributions: built, found, checked by the conformance kit, and served over
# HTTP. The devices are the example, one with numpy tensors, and the skeleton that `headrace plugin new` writes. Uses a
# fresh environment, with nothing of the checkout on the path.
#
# Usage: ci/plugin.sh [folder for the environment and the reports, default build/plugin]
#   PYTHON=python3.12   the interpreter
#   TORCH=2.9.1         the version of torch; default: that of constraints/cpu.txt
# The last line is `N passed, N failed`: the kit's tests, and every step of this script as one more.
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD
work=${1:-build/plugin}
rm -rf "$work"
mkdir -p "$work"
work=$(cd "$work" && pwd)
bin=$work/venv/bin
passed=0 failed=0

step() { # step NAME COMMAND...: what it says is shown only where it fails
  local name=$1 begun=$SECONDS
  shift
  if "$@" >"$work/step.log" 2>&1; then
    passed=$((passed + 1))
    echo "ok      $name ($((SECONDS - begun)) s)"
    tail -n 1 "$work/step.log"
  else
    failed=$((failed + 1))
    echo "FAILED  $name"
    tail -n 40 "$work/step.log"
    return 1
  fi
}

finish() {
  echo "$passed passed, $failed failed"
  [[ $failed -eq 0 ]]
  exit
}

install() { # Without the native kernels: this job is about another device.
  local torch=(-c constraints/cpu.txt torch)
  [[ -n ${TORCH:-} ]] && torch=("torch==$TORCH")
  "${PYTHON:-python3}" -m venv "$work/venv" &&
    "$bin/pip" install -q "${torch[@]}" "setuptools>=77" "hypothesis>=6.100" "pytest>=8.3" &&
    "$bin/pip" install -q -C wheel.cmake=false . && "$bin/python" -c 'import torch; print("torch", torch.__version__)'
}

build() {
  # Copied, so that nothing is left in the checkout and no older build is taken for this one.
  rm -rf "$work/source" && cp -r examples/backend_plugin "$work/source" && rm -rf "$work/source/build" &&
    "$bin/pip" install -q --no-build-isolation --no-deps "$work/source" && "$bin/pip" check
}

build_numpy() {
  rm -rf "$work/numpy" && cp -r examples/backend_numpy "$work/numpy" &&
    "$bin/pip" install -q --no-build-isolation --no-deps "$work/numpy" && "$bin/pip" check
}

found() {
  "$bin/headrace" doctor --platform example --json >"$work/doctor.json" &&
    "$bin/python" - "$work/doctor.json" <<'PYTHON'
import json, sys
report = json.load(open(sys.argv[1]))
(plugin,) = (p for p in report["plugins"] if p["name"] == "example")
assert plugin["distribution"] == "headrace-example", plugin
own = {o["name"]: o["implementation"] for o in report["operators"]["bound"] if o["implementation"] != "reference"}
assert own == {"rms_norm": "example", "linear": "example-c++"}, own
print(plugin["distribution"], plugin["version"], own)
PYTHON
}

kit() { # kit NAME: the exit code is the kit's; its tests are counted by `count`
  "$bin/headrace" conformance "$1" --json "$work/$1.json" --junit "$work/$1.xml" --badge "$work/$1.badge" &&
    cat "$work/$1.badge"
}

count() { # adds the tests of a report
  local counts
  [[ -f $work/$1.json ]] || return 0
  counts=$("$bin/python" - "$work/$1.json" <<'PYTHON'
import json, sys
results = [test["result"] for test in json.load(open(sys.argv[1]))["tests"]]
print(results.count("passed"), results.count("failed"))
PYTHON
  ) || return
  passed=$((passed + ${counts% *})) failed=$((failed + ${counts#* }))
}

skeleton() {
  "$bin/headrace" plugin new mill --dir "$work" &&
    "$bin/pip" install -q --no-build-isolation --no-deps "$work/headrace-mill" &&
    "$bin/python" -m pytest -q -p no:cacheprovider "$work/headrace-mill/tests"
}

export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
step "install into a fresh environment" install || finish
step "build the example against this torch" build || finish
step "install the example in numpy" build_numpy || finish
cd "$work" || exit # away from the checkout: what is imported now is what was installed
step "found by its entry point" found
step "the kit on the example" kit example
count example
step "serve over HTTP, with the CPU's answers" "$bin/python" "$root/ci/plugin_serve.py" "$work/tiny" example
step "serve it split over two devices, with the CPU's answers" \
  "$bin/python" "$root/ci/plugin_serve.py" "$work/split" example 2
step "the kit on the example in numpy" kit numpy
count numpy
step "serve over HTTP on numpy, with the CPU's answers" \
  "$bin/python" "$root/ci/plugin_serve.py" "$work/numpy-tiny" numpy
step "a new skeleton passes its own tests" skeleton
step "the kit on the skeleton" kit mill
count mill
finish
