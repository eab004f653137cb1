#!/usr/bin/env bash
# A long check: load with a content ledger on a cluster of its own, while its nodes are restarted, killed
# and paused one after the other and its partitions are moved. Ends with `lost: 0`, or fails.
#
# Kept true: one node is disturbed at a time and is back before the next one; only processes of this run
# are signalled; what was acknowledged is looked for by content; everything is removed at the end.
set -Eeuo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/lib.sh"

usage() {
  cat <<'USAGE'
usage: scripts/soak.sh [MINUTES]

Runs for MINUTES (default: 60) and as long again as consumers need for the rest, at most 3 minutes.

environment:
  NARAD_SOAK_RATE   how fast to produce (default: 1MiB/s)
  NARAD_SOAK_KEEP   1: leave the directory with the logs, also when all is well
USAGE
}

case "${1:-60}" in
-h | --help) usage && exit 0 ;;
*[!0-9]* | 0*) wrong_usage "'$1' is no number of minutes" ;;
esac
MINUTES="${1:-60}"
RATE="${NARAD_SOAK_RATE:-1MiB/s}"
PARTITIONS=6
DRAIN_SECONDS=180
# Beyond the time of the run: starting, draining, replaying. A run that is not over by then hangs.
GRACE_SECONDS=600

ensure_build_tools
cd "$ROOT"
cargo build --release --locked --quiet -p narad -p narad-bench
NARAD="$TARGET_DIR/release/narad"
BENCH="$TARGET_DIR/release/narad-bench"
export NARAD

DIR="$(scratch_dir narad-soak)"
export NARAD_CLUSTER="$DIR/cluster"
cluster() { "$ROOT/scripts/cluster.sh" "$@"; }

CHECK=""
cleanup() {
  local code=$?
  [[ -z "$CHECK" ]] || kill -TERM "$CHECK" 2>/dev/null || true
  if ((code != 0)) || [[ "${NARAD_SOAK_KEEP:-0}" == 1 ]]; then
    say "logs of the nodes and of the load are in $DIR"
    local id
    for id in n1 n2 n3; do cp "$NARAD_CLUSTER/nodes/$id/log" "$DIR/$id.log" 2>/dev/null || true; done
    cluster down || true
  else
    cluster down || true
    rm -rf -- "$DIR"
  fi
}
trap cleanup EXIT

cluster up 3 -- --segment-bytes 16777216 >/dev/null
NARAD_SERVER="$(cluster server)"
export NARAD_SERVER
"$NARAD" topic create soak --partitions "$PARTITIONS" >/dev/null

timeout --signal=TERM --kill-after=30 $((MINUTES * 60 + GRACE_SECONDS)) \
  "$BENCH" check --topic soak --input "$ROOT" --rate "$RATE" --seconds $((MINUTES * 60)) \
  --drain-seconds "$DRAIN_SECONDS" >"$DIR/check.out" 2>"$DIR/check.err" &
CHECK=$!

# disturb ROUND: one thing happens to one node, and it is back at the end.
disturb() {
  local round="$1" id="n$(($1 % 3 + 1))"
  case $((round / 3 % 3)) in
  0) cluster restart "$id" >/dev/null ;;
  1)
    cluster kill "$id" >/dev/null
    sleep 2
    cluster restart "$id" >/dev/null
    ;;
  2)
    cluster pause "$id" >/dev/null
    sleep 3
    cluster resume "$id" >/dev/null
    ;;
  esac
  # And a partition goes to another node, each time round to another one. Refused is fine: it may be moving.
  local to="n$(((round + 1 + round / PARTITIONS) % 3 + 1))"
  timeout 20 "$NARAD" cluster move "soak/$((round % PARTITIONS))" --to "$to" >/dev/null 2>&1 || true
}

round=0
until=$((SECONDS + MINUTES * 60))
while ((SECONDS < until)) && kill -0 "$CHECK" 2>/dev/null; do
  disturb "$round"
  round=$((round + 1))
  say "$round disturbances, $(((until - SECONDS) / 60)) min left"
  sleep 10
done

code=0
wait "$CHECK" || code=$?
CHECK=""
cat "$DIR/check.out"
if ((code != 0)); then
  tail -n 20 "$DIR/check.err" >&2
  die "the check ended with $code after $round disturbances" "see $DIR"
fi
say "nothing was lost in $MINUTES minutes with $round disturbances"
