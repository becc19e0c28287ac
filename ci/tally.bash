# Sourced by scripts that add up the results of several test runs in `passed` and `failed`.

tally() { # tally LOG: add what its last line counts; a run that ended before it could count is one failure
  local good bad
  good=$(tail -n 1 "$1" | grep -oE '[0-9]+ passed' | grep -oE '[0-9]+') || true
  bad=$(tail -n 1 "$1" | grep -oE '[0-9]+ (failed|error)' | grep -oE '[0-9]+') || true
  [[ -n $good || -n $bad ]] || bad=1
  passed=$((passed + ${good:-0})) failed=$((failed + ${bad:-0}))
}
