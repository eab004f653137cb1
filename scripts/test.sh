#!/usr/bin/env bash
# All checks and all tests: formatting, lints, documentation, the tests of every crate, the scripts,
# the example clients.
# Needs Rust, a C compiler, git and apt; installs what is missing. Long runs (chaos,
# benchmarks) are scripts of their own. Stops at the first step that fails and says which.
set -Eeuo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/lib.sh"

case "${1:-}" in
"") ;;
-h | --help)
  cat <<'USAGE'
usage: scripts/test.sh

Runs every check and test of the workspace. Output is that of the tools themselves.
  NARAD_TEST_JOBS=N   tests that run at once within one test program (default: 2)
USAGE
  exit 0
  ;;
*) wrong_usage "unknown argument '$1'" ;;
esac

cd "$ROOT"
exec </dev/null
STEP="start"
BEGAN=$SECONDS
trap 'code=$?; ((code == 0)) || printf "\n%s: FAILED in step: %s\n" "$SCRIPT_NAME" "$STEP" >&2' EXIT

step() {
  STEP="$1"
  shift
  local began=$SECONDS
  printf '\n=== %s\n' "$STEP"
  "$@"
  printf '=== %s: ok, %d s\n' "$STEP" $((SECONDS - began))
}

scripts_lint() {
  local file
  for file in scripts/*.sh .ci/run; do
    bash -n "$file"
    printf '%s parses\n' "$file"
    [[ "$file" == scripts/lib.sh || -x "$file" ]] || die "$file is not executable" "chmod +x $file"
  done
}

tests() {
  # Nodes are processes with several threads each, so few tests at once are enough for the machine.
  RUST_TEST_THREADS="${NARAD_TEST_JOBS:-2}" RUST_BACKTRACE=1 \
    cargo test --workspace --locked --no-fail-fast
}

examples() {
  # The tests have just built it.
  local built="$TARGET_DIR/debug/narad"
  [[ ! -x "$built" ]] || local -x NARAD="$built"
  scripts/examples.sh
}

documentation() {
  RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
}

ensure_build_tools fmt clippy
step "scripts" scripts_lint
step "format" cargo fmt --all --check
step "lints" cargo clippy --workspace --all-targets --locked -- -D warnings
step "documentation" documentation
step "tests" tests
step "example clients" examples
printf '\nall checks passed in %d s\n' $((SECONDS - BEGAN))
