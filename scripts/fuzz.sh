#!/usr/bin/env bash
# Runs cargo-fuzz on the readers of disk bytes: scripts/fuzz.sh [SECONDS] [TARGET...]
# Each target runs for SECONDS (default: 60) from the corpus in the tree; what it finds on the way is kept
# below the build directory, so that the next run goes on from there. scripts/fuzz.sh --keep [TARGET...] adds
# to the tree what covers more of a reader than the files that are there. Installs cargo-fuzz where it is
# missing. The suite runs the same functions on the corpus and on random changes of it, without cargo-fuzz.
set -Eeuo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/lib.sh"

# Targets, each with the directory of its crate.
declare -A CRATES=(
  [frame]=storage [segment]=storage [meta]=storage [list]=storage [footer]=storage [wal]=storage
  [staged]=storage [raft]=node
)
ALL=(frame segment meta list footer wal staged raft)

keep=0
seconds=60
case "${1:-}" in
--keep)
  keep=1
  shift
  ;;
-h | --help)
  sed -n '2,6s/^# \?//p' "$0"
  exit 0
  ;;
"") ;;
*)
  seconds="$1"
  [[ "$seconds" =~ ^[0-9]+$ ]] || wrong_usage "SECONDS is a number, not '$seconds'"
  shift
  ;;
esac
targets=("$@")
((${#targets[@]})) || targets=("${ALL[@]}")
for target in "${targets[@]}"; do
  [[ -n "${CRATES[$target]:-}" ]] || wrong_usage "no target '$target'; there are: ${ALL[*]}"
done

ensure_build_tools
ensure_packages c++=build-essential
if ! cargo fuzz --version >/dev/null 2>&1; then
  say "installing cargo-fuzz"
  cargo install --locked cargo-fuzz </dev/null >&2 ||
    die "cargo-fuzz could not be installed" "cargo install cargo-fuzz"
fi
# Coverage and the address sanitizer are unstable options; this lets the project's own compiler take them.
export RUSTC_BOOTSTRAP=1

# fuzz TARGET DIR... -- OPTION...: runs a target, building it first.
fuzz() {
  local target="$1"
  shift
  (cd "$ROOT/${CRATES[$target]}" &&
    cargo fuzz run --target-dir "$TARGET_DIR/fuzz" "$target" "$@") </dev/null
}

for target in "${targets[@]}"; do
  seeds="$ROOT/${CRATES[$target]}/fuzz/corpus/$target"
  grown="$TARGET_DIR/fuzz-corpus/$target"
  mkdir -p "$grown"
  if ((keep)); then
    say "keeping what $target has found"
    # Meta files are two slots of 4096 bytes; nothing needs more.
    fuzz "$target" "$seeds" "$grown" -- -merge=1 -max_len=8192
  else
    say "fuzzing $target for $seconds s"
    fuzz "$target" "$grown" "$seeds" -- \
      -max_total_time="$seconds" -max_len=65536 -print_final_stats=1
  fi
done
