#!/usr/bin/env bash
# Power cuts: builds images of what a disk could hold after a cut, and recovers each. The suite does so with
# some thousands, always the same; this goes on with others for as long as it is told.
set -Eeuo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/lib.sh"

usage() {
  cat <<'USAGE'
usage: scripts/power.sh [MINUTES]

Runs rounds of images for MINUTES (default: 10), each with a seed of its own. Stops at the first round that
fails and says its seed.

environment:
  NARAD_POWER_IMAGES   images of each test in a round (default: 2000)
  NARAD_POWER_SEED     seed of the first round (default: drawn at random)
USAGE
}

case "${1:-10}" in
-h | --help) usage && exit 0 ;;
*[!0-9]* | 0*) wrong_usage "'$1' is no number of minutes" ;;
esac
MINUTES="${1:-10}"
export NARAD_POWER_IMAGES="${NARAD_POWER_IMAGES:-2000}"
seed="${NARAD_POWER_SEED:-$RANDOM$RANDOM}"

ensure_build_tools
cd "$ROOT"
exec </dev/null
cargo test --locked -p narad-storage --test power --test power_moves --no-run
end=$((SECONDS + 60 * MINUTES))
rounds=0 images=0
while ((rounds == 0 || SECONDS < end)); do
  said="$(NARAD_POWER_SEED="$seed" cargo test --locked --quiet -p narad-storage --test power \
    --test power_moves 2>&1)" || {
    printf '%s\n' "$said" >&2
    die "a round failed after $images images" "NARAD_POWER_SEED=$seed scripts/power.sh 1"
  }
  # Tests that build so many images each; the second cut of some is not counted.
  tests="$(awk '/^test result: ok/ { sum += $4 } END { print sum + 0 }' <<<"$said")"
  rounds=$((rounds + 1)) images=$((images + tests * NARAD_POWER_IMAGES)) seed=$((seed + 1))
  say "$rounds rounds, $images images, none failed"
done
