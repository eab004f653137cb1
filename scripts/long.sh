#!/usr/bin/env bash
# The long tier of the tests: what takes minutes and is not part of scripts/test.sh.
# Stops at the first step that fails and says which.
set -Eeuo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/lib.sh"

case "${1:-}" in
"") ;;
-h | --help)
  printf 'usage: scripts/long.sh\n\nRuns a soak of five minutes, five minutes of the simulator and of power cuts, twenty storms over Raft, and\nthe fuzzers for a minute each. For an hour: scripts/soak.sh\n'
  exit 0
  ;;
*) wrong_usage "unknown argument '$1'" ;;
esac

cd "$ROOT"
exec </dev/null
step() {
  local name="$1" began=$SECONDS
  shift
  printf '\n=== %s\n' "$name"
  "$@" || die "step '$name' failed"
  printf '=== %s: ok, %d s\n' "$name" $((SECONDS - began))
}

step "soak" scripts/soak.sh 5
step "simulator" scripts/sim.sh 5
step "power cuts" scripts/power.sh 5
step "storms" env NARAD_RAFT_SEEDS=20 \
  cargo test --locked -p narad --test raft_faults many_storms -- --ignored --nocapture
step "fuzzers" scripts/fuzz.sh 60
