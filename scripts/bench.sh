#!/usr/bin/env bash
# The benchmarks in about ten minutes: storage alone, bandwidth and processor time of copies, freeze
# against W/B and size; others by name. Everything runs on this machine, on clusters of its own, which
# are ended and removed. Results (tables, JSON, plots) go to bench/results/.
set -Eeuo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/lib.sh"

OUT=""
DIR=""
CHECK=()
ONLY="storage copy freeze"

usage() {
  cat <<'USAGE'
usage: scripts/bench.sh [--check] [--only "COMMAND…"] [--dir DIR] [--out DIR]

  --check      exit with 1 when a bar falls short
  --only LIST  of storage, copy, freeze, produce, flow and throttle (default: the first three; each of the
               others takes some minutes more)
  --dir DIR    where data goes, on a real disk with 8 GiB of room (default: /var/tmp, or target)
  --out DIR    where results go (default: bench/results/TIME-COMMIT)

The full versions, which take longer and say more: narad-bench storage, copy, freeze, produce, flow and
throttle; narad-bench COMMAND --help.
USAGE
}

while (($#)); do
  case "$1" in
  --check) CHECK=(--check) ;;
  --only | --dir | --out)
    [[ -n "${2:-}" ]] || wrong_usage "$1 wants a value"
    case "$1" in
    --only) ONLY="$2" ;;
    --dir) DIR="$(readlink -f -- "$2")" ;;
    --out) OUT="$2" ;;
    esac
    shift
    ;;
  -h | --help)
    usage
    exit 0
    ;;
  *) wrong_usage "unknown argument '$1'" ;;
  esac
  shift
done
for command in $ONLY; do
  case "$command" in
  storage | copy | freeze | produce | flow | throttle) ;;
  *) wrong_usage "there is no benchmark '$command'" ;;
  esac
done

exec </dev/null
cd "$ROOT"
ensure_build_tools
say "building"
cargo build --release --locked -p narad -p narad-bench >&2
BENCH="$TARGET_DIR/release/narad-bench"

if [[ -n "$DIR" ]]; then
  [[ -d "$DIR" ]] || die "$DIR is no directory" "name one with --dir"
  real_disk "$DIR" || die "$DIR is not on a real disk" "name another directory with --dir"
  DATA="$(mktemp -d "$DIR/narad-bench.XXXXXX")"
else
  DATA="$(scratch_dir narad-bench)"
fi
trap 'rm -rf -- "$DATA"' EXIT

COMMIT="$(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
[[ -n "$OUT" ]] || OUT="$ROOT/bench/results/$(date -u +%Y%m%dT%H%M%SZ)-$COMMIT"
mkdir -p "$OUT"

FAILED=()
run() {
  local name="$1"
  shift
  say "$name"
  "$BENCH" "$name" "$@" "${CHECK[@]}" --dir "$DATA" | tee "$OUT/$name.log" || FAILED+=("$name")
  printf '\n'
}

for command in $ONLY; do
  case "$command" in
  storage)
    run storage --large 0 --pairs 9 --small 256MiB
    ;;
  copy) run copy --size 512MiB --rounds 9 --out "$OUT" ;;
  freeze)
    run freeze --size 8MiB --bandwidth 16MiB/s --ratios 0,0.25,0.5,0.75,0.9,1,1.25,2 --sizes 64MiB,512MiB \
      --moves 9 --out "$OUT"
    ;;
  produce) run produce --nodes 1 --slot-ms 500 --bytes 64MiB ;;
  flow) run flow --nodes 1 --bytes 32MiB ;;
  throttle) run throttle --bytes 64MiB ;;
  esac
done

say "results are in $OUT"
((${#FAILED[@]} == 0)) || die "not good: ${FAILED[*]}" "the tables above and in $OUT say what"
