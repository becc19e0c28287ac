#!/usr/bin/env bash
# Tests the package. Without a compiler, the build gives a wheel of Python only, whose `doctor` reports the missing
# kernels, the cost and the remedy. With a compiler, the source distribution gives a wheel for this platform and every
# Python 3, with a library that runs.
#
# Usage: ci/package.sh [folder, default build/package]
#   PYTHON=python3.12   an interpreter with headrace's dependencies; default .venv/bin/python. Its headrace is not used.
# The last line is `N passed, N failed`.
set -uo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
work=${1:-build/package}
rm -rf "$work"
mkdir -p "$work/source"
work=$(cd "$work" && pwd)
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
passed=0 failed=0

step() { # step NAME COMMAND...: what it says is shown only where it fails
  local name=$1
  shift
  if "$@" >"$work/step.log" 2>&1; then
    passed=$((passed + 1))
    echo "ok      $name"
  else
    failed=$((failed + 1))
    echo "FAILED  $name"
    tail -n 40 "$work/step.log"
  fi
}

unpack() { "$python" -m zipfile -e "$work/$1"/headrace-*.whl "$work/$1/installed"; }

# Use only the unpacked wheel and the dependencies: without `site`, the install of the checkout is not found.
headrace() { # headrace FOLDER ARGUMENTS
  (cd "$work" && PYTHONPATH="$work/$1/installed:$site" "$python" -S -c \
    'import sys; from headrace.cli.main import main; sys.exit(main(sys.argv[1:]))' "${@:2}")
}

tag() { # tag FOLDER TAG
  ls "$work/$1"/headrace-*-"$2".whl && grep -qx "Tag: $2" "$work/$1"/installed/headrace-*.dist-info/WHEEL
}

contents() { # contents FOLDER COUNT: that many libraries, and no sources of them
  [[ $(find "$work/$1/installed" -name '*.so' | wc -l) -eq $2 ]] &&
    [[ -z $(find "$work/$1/installed" -name '*.cpp' -o -name '*.h' -o -name '*.inc') ]]
}

page() { # page FOLDER: every file of the page at `/`
  diff -r src/headrace/server/page "$work/$1/installed/headrace/server/page"
}

tells() { # tells FOLDER TEXT...: `doctor` says each
  local text
  headrace "$1" doctor --platform cpu >"$work/doctor.txt" || { cat "$work/doctor.txt"; return 1; }
  for text in "${@:2}"; do grep -qF "$text" "$work/doctor.txt" || { cat "$work/doctor.txt"; return 1; }; done
}

sources() { # The files that git has, so that nothing built here is taken for a source.
  git ls-files -z | tar --null -T - -cf - | tar -xf - -C "$work/source"
}

no_compiler() {
  (cd "$work/source" && CC=/bin/false CXX=/bin/false "$python" -m pip wheel -q --no-deps -w "$work/pure" .) &&
    unpack pure
}

from_source() {
  "$python" -m pip install -q --target "$work/tools" build scikit-build-core &&
    (cd "$work/source" && PYTHONPATH="$work/tools" "$python" -m build --sdist --no-isolation -o "$work/dist" .) &&
    "$python" -m pip wheel -q --no-deps -C cmake.define.HEADRACE_ISAS=generic -w "$work/native" \
      "$work"/dist/headrace-*.tar.gz &&
    unpack native
}

export OMP_NUM_THREADS=1
step "take the sources" sources
step "install without a compiler" no_compiler
step "a wheel for any platform" tag pure py3-none-any
step "no library and no kernel sources in it" contents pure 0
step "the page in it" page pure
step "doctor says what is missing, the cost and the remedy" tells pure "the native kernels were not built" \
  "many times slower" "install a compiler and then headrace again" "linear            reference"
step "install from the source distribution" from_source
step "a wheel for this platform and any Python 3" tag native "py3-none-$("$python" -c \
  'import sysconfig; print(sysconfig.get_platform().replace("-", "_").replace(".", "_"))')"
step "one library and no kernel sources in it" contents native 1
step "the page in it" page native
step "doctor finds native operators" tells native "native generic"
echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
