#!/usr/bin/env bash
# The models within their wide bounds, and every rule switched off: scripts/model.sh [NAME]
# Each model takes minutes and up to a few GiB of memory; state counts are printed.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --quiet --release -p narad-sim
target/release/narad-sim model --wide ${1:+"$1"}
[ $# -gt 0 ] || target/release/narad-sim mutations
