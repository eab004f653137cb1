#!/usr/bin/env bash
# Walks of the simulator for as long as you like: scripts/sim.sh [MINUTES] [FIRST_SEED]
# Ends with the table of faults by phase, or with a seed and the actions that matter.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${1:-60}
seed=${2:-$(date +%s)}
cargo build --quiet --release -p narad-sim
exec target/release/narad-sim soak --minutes "$minutes" --seed "$seed"
