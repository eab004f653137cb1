#!/usr/bin/env bash
# Runs cargo-fuzz on the readers of disk bytes: scripts/fuzz.sh [SECONDS] [TARGET...]
# Each target (frame, segment, meta, list, footer) runs for SECONDS (default: 60), from the corpus in
# storage/fuzz/corpus, to which it adds what it finds. Needs a nightly compiler; installs it with rustup,
# and cargo-fuzz, where they are missing. The suite runs the same functions without both.
set -Eeuo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/lib.sh"

seconds="${1:-60}"
[[ "$seconds" =~ ^[0-9]+$ ]] || wrong_usage "SECONDS is a number, not '$seconds'"
shift || true
targets=("$@")
((${#targets[@]})) || targets=(frame segment meta list footer)

ensure_rust
if ! rustup run nightly rustc --version >/dev/null 2>&1; then
  say "installing a nightly compiler"
  rustup toolchain install nightly --profile minimal </dev/null >&2 ||
    die "no nightly compiler" "rustup toolchain install nightly"
fi
if ! cargo fuzz --version >/dev/null 2>&1; then
  say "installing cargo-fuzz"
  cargo install --locked cargo-fuzz </dev/null >&2 ||
    die "cargo-fuzz could not be installed" "cargo install cargo-fuzz"
fi

cd "$ROOT/storage/fuzz"
for target in "${targets[@]}"; do
  say "fuzzing $target for $seconds s"
  cargo +nightly fuzz run --target-dir "$TARGET_DIR/fuzz" "$target" -- \
    -max_total_time="$seconds" -max_len=65536 -print_final_stats=1
done
