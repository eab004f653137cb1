#!/usr/bin/env bash
# The example clients of schema/examples, Python and C++, against a cluster of three nodes: each
# produces, consumes, acks and replays while partitions move, and checks every record by its
# content. Installs what is missing, ends and removes what it started; the exit code is 0 only when
# every example has succeeded.
set -Eeuo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/lib.sh"

RECORDS=10000
EXAMPLE_SECONDS=300
EXAMPLES="$ROOT/schema/examples"
MADE="$TARGET_DIR/examples"
LANGUAGES=()

usage() {
  cat <<USAGE
usage: scripts/examples.sh [--records N] [python] [cpp]

  --records N   how many records each example produces at least (default: $RECORDS)

Without a language both are run. What is built and installed for them is in target/examples.
  NARAD=FILE    the program to start the nodes with (default: it is built)
USAGE
}

while (($#)); do
  case "$1" in
  --records)
    [[ "${2:-}" =~ ^[1-9][0-9]*$ ]] || wrong_usage "--records wants a number"
    RECORDS="$2"
    shift
    ;;
  python | cpp) LANGUAGES+=("$1") ;;
  -h | --help)
    usage
    exit 0
    ;;
  *) wrong_usage "unknown argument '$1'" ;;
  esac
  shift
done
((${#LANGUAGES[@]})) || LANGUAGES=(python cpp)

exec </dev/null
cd "$ROOT"
RUN=""
STEP="preparing"

finish() {
  local code=$? log
  trap - EXIT INT TERM
  if [[ -n "$RUN" ]]; then
    if ((code != 0)); then
      say "FAILED while $STEP"
      for log in "$RUN"/cluster/nodes/*/log; do
        [[ -r "$log" ]] || continue
        printf -- '--- warnings and errors in %s\n' "$log" >&2
        { grep -aE ' (WARN|ERROR) |panicked' "$log" || true; } | tail -n 12 >&2
      done
    fi
    NARAD_CLUSTER="$RUN/cluster" "$ROOT/scripts/cluster.sh" down || say "the cluster was not ended cleanly"
    rm -rf -- "$RUN"
  fi
  exit "$code"
}
trap finish EXIT
trap 'exit 1' INT TERM

began() { STEP="$1" && say "$1"; }

# program: the nodes' program, built if none was named.
program() {
  if [[ -n "${NARAD:-}" ]]; then
    [[ -x "$NARAD" ]] || die "NARAD=$NARAD cannot be run"
    readlink -f "$NARAD"
    return 0
  fi
  local profile=debug build=(--locked -p narad)
  # Whoever has made a release build only does not want to wait for another one.
  [[ -x "$TARGET_DIR/debug/narad" || ! -x "$TARGET_DIR/release/narad" ]] || profile=release
  [[ "$profile" == debug ]] || build+=(--release)
  ensure_build_tools
  cargo build "${build[@]}" >&2
  readlink -f "$TARGET_DIR/$profile/narad"
}

# new_enough PYTHON: whether it is one that pycapnp runs on and can make environments.
new_enough() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; }

python_prepare() {
  local python venv="$MADE/python" wanted
  python="$(command -v python3 || true)"
  if [[ -z "$python" ]] || ! new_enough "$python"; then
    install_packages python3 python3-venv
    python=/usr/bin/python3
    new_enough "$python" || die "no Python 3.9 or newer with venv was found" "install python3 and python3-venv"
  fi
  wanted="$("$python" --version) $(cksum <"$EXAMPLES/python/requirements.txt")"
  [[ "$(cat "$venv/complete" 2>/dev/null || true)" == "$wanted" ]] && return 0
  say "installing $(grep -c == "$EXAMPLES/python/requirements.txt") Python packages into $venv"
  rm -rf -- "$venv"
  "$python" -m venv "$venv" >&2
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
    --requirement "$EXAMPLES/python/requirements.txt" >&2 ||
    die "the Python packages could not be installed" "can pip reach its package index?"
  printf '%s\n' "$wanted" >"$venv/complete"
}

python_run() {
  PYTHONDONTWRITEBYTECODE=1 timeout "$EXAMPLE_SECONDS" "$MADE/python/bin/python" \
    "$EXAMPLES/python/example.py" "$1" --records "$RECORDS"
}

cpp_prepare() {
  ensure_packages c++=build-essential make=make capnp=capnproto
  ensure_libraries capnp-rpc=libcapnp-dev
  make --silent -C "$EXAMPLES/cpp" BUILD="$MADE/cpp"
}

cpp_run() { timeout "$EXAMPLE_SECONDS" "$MADE/cpp/example" "$1" "$RECORDS"; }

NARAD="$(program)"
export NARAD
mkdir -p "$MADE"
MADE="$(cd "$MADE" && pwd)" # make works in another directory
for language in "${LANGUAGES[@]}"; do
  began "preparing the example in $language"
  "${language}_prepare"
done

RUN="$(scratch_dir narad-examples)"
export NARAD_CLUSTER="$RUN/cluster"
began "starting three nodes"
scripts/cluster.sh up 3
SERVERS="$(scripts/cluster.sh server)"
for language in "${LANGUAGES[@]}"; do
  began "running the example in $language"
  "${language}_run" "$SERVERS" || die "the example failed, or took longer than $EXAMPLE_SECONDS s"
done
began "ending the cluster"
scripts/cluster.sh down
say "all examples succeeded"
