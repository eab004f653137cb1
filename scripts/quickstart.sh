#!/usr/bin/env bash
# The main job in one command, on a bare machine: builds, starts three nodes, produces and consumes
# real text, joins a fourth node and decommissions one of the first three meanwhile, and checks
# every acknowledged record by its content. The last line is `lost: N`; the exit code is 0 only when
# nothing is lost and every step has succeeded. Everything that was started is ended and removed.
set -Eeuo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/lib.sh"

INPUT=""
RATE="2MiB/s"
WARM_UP=15
KEEP=0
PROFILE=release
PARTITIONS=12

usage() {
  cat <<USAGE
usage: scripts/quickstart.sh [--input FILE] [--rate RATE] [--keep] [--debug]

  --input FILE   text whose lines become the records (default: the sources that cargo downloaded)
  --rate RATE    how fast to produce (default: $RATE)
  --keep         leave the logs of the run in place and say where they are
  --debug        use a debug build, which is built faster and runs slower

Everything else is decided here: three nodes, a topic of $PARTITIONS partitions, one node more, one less.
USAGE
}

while (($#)); do
  case "$1" in
  --input)
    [[ -n "${2:-}" ]] || wrong_usage "--input wants a file"
    INPUT="$(readlink -f -- "$2")" && [[ -r "$INPUT" ]] || die "cannot read $2" "name a text file"
    shift
    ;;
  --rate)
    [[ -n "${2:-}" ]] || wrong_usage "--rate wants a rate, as in 2MiB/s"
    RATE="$2"
    shift
    ;;
  --keep) KEEP=1 ;;
  --debug) PROFILE=debug ;;
  -h | --help)
    usage
    exit 0
    ;;
  *) wrong_usage "unknown argument '$1'" ;;
  esac
  shift
done

exec </dev/null
cd "$ROOT"
RUN=""
STEP="preparing"

finish() {
  local code=$?
  trap - EXIT INT TERM
  if [[ -n "$RUN" ]]; then
    signal_remembered KILL "$RUN/load.pid" || true
    if ((code != 0)); then
      say "FAILED while $STEP"
      local log
      for log in "$RUN"/cluster/nodes/*/log; do
        [[ -r "$log" ]] || continue
        printf -- '--- warnings and errors in %s\n' "$log" >&2
        { grep -aE ' (WARN|ERROR) |panicked' "$log" || true; } | tail -n 12 >&2
      done
    fi
    if ((KEEP)); then
      mkdir -p "$RUN/logs"
      local node
      for node in "$RUN"/cluster/nodes/*/; do
        [[ -r "$node/log" ]] && cp "$node/log" "$RUN/logs/$(basename "$node").log"
      done
      say "the logs are in $RUN/logs"
    fi
    NARAD_CLUSTER="$RUN/cluster" "$ROOT/scripts/cluster.sh" down || say "the cluster was not ended cleanly"
    if ((KEEP)); then rm -rf -- "$RUN/cluster"; else rm -rf -- "$RUN"; fi
  fi
  exit "$code"
}
trap finish EXIT
trap 'exit 1' INT TERM

began() { STEP="$1" && say "$1"; }

began "building ($PROFILE)"
ensure_build_tools
BUILD=(--locked -p narad -p narad-bench)
[[ "$PROFILE" == debug ]] || BUILD+=(--release)
cargo build "${BUILD[@]}"
if [[ -z "$INPUT" ]]; then
  INPUT="$(find "${CARGO_HOME:-$HOME/.cargo}/registry/src" -mindepth 1 -maxdepth 1 -type d | head -n1)"
  [[ -n "$INPUT" ]] || die "cargo has left no sources here" "name a text file: --input FILE"
fi

STARTED=$SECONDS
export NARAD="$TARGET_DIR/$PROFILE/narad"
BENCH="$TARGET_DIR/$PROFILE/narad-bench"
RUN="$(scratch_dir narad-quickstart)"
export NARAD_CLUSTER="$RUN/cluster"

began "starting three nodes"
scripts/cluster.sh up 3
NARAD_SERVER="$(scripts/cluster.sh server)"
export NARAD_SERVER

began "creating a topic of $PARTITIONS partitions"
"$NARAD" topic create quickstart --partitions "$PARTITIONS"

began "producing and consuming: lines of $INPUT at $RATE"
"$BENCH" check --topic quickstart --input "$INPUT" --rate "$RATE" </dev/null >"$RUN/report" &
LOAD=$!
remember_process "$RUN/load.pid" "$LOAD"

# still_loading: the checker must not have given up meanwhile.
still_loading() { remembered_pid "$RUN/load.pid" >/dev/null || die "the checker has ended too early"; }

sleep "$WARM_UP"
still_loading

began "joining a fourth node"
FOURTH="$(scripts/cluster.sh add)"
began "waiting until $FOURTH has its share"
"$NARAD" cluster moves --wait --for-seconds 90
"$NARAD" cluster members
still_loading

began "decommissioning n1"
timeout 90 "$NARAD" cluster decommission n1 --wait
"$NARAD" cluster members --server "${NARAD_SERVER#*,}"
still_loading

began "consuming and acknowledging the rest, and checking every record"
signal_remembered TERM "$RUN/load.pid"
if ! wait "$LOAD"; then
  cat "$RUN/report"
  die "records are missing or the check failed" "$0 --keep leaves the nodes' logs"
fi

began "ending the cluster"
scripts/cluster.sh down
say "done, $((SECONDS - STARTED)) s after the build"
cat "$RUN/report"
