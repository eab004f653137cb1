# shellcheck shell=bash
# What the scripts share: where things are, what must be installed, talking to a person, ending
# only processes that were started here. Sourced, never run.
#
# Kept true: nothing is asked, nothing is read from standard input, and no process is signalled
# unless its pid and its start time are both the ones that were written down when it was started.

set -Eeuo pipefail

ROOT="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)"
TARGET_DIR="${CARGO_TARGET_DIR:-$ROOT/target}"
SCRIPT_NAME="$(basename "$0")"
RUST_NEEDED=1.95
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"

say() { printf '%s: %s\n' "$SCRIPT_NAME" "$*" >&2; }

# die MESSAGE [HINT]: ends the script with exit code 1.
die() {
  printf '%s: error: %s\n' "$SCRIPT_NAME" "$1" >&2
  if [[ -n "${2:-}" ]]; then printf '%s: hint: %s\n' "$SCRIPT_NAME" "$2" >&2; fi
  exit 1
}

# wrong_usage MESSAGE: ends the script with exit code 2.
wrong_usage() {
  printf '%s: %s\n%s: see %s --help\n' "$SCRIPT_NAME" "$1" "$SCRIPT_NAME" "$SCRIPT_NAME" >&2
  exit 2
}

have() { command -v "$1" >/dev/null 2>&1; }

# ensure_packages COMMAND=PACKAGE...: installs with apt whatever command is missing.
ensure_packages() {
  local pair missing=()
  for pair in "$@"; do
    have "${pair%%=*}" || missing+=("${pair#*=}")
  done
  install_packages "${missing[@]}"
}

# ensure_libraries MODULE=PACKAGE...: the same for what pkg-config is to find.
ensure_libraries() {
  ensure_packages pkg-config=pkg-config
  local pair missing=()
  for pair in "$@"; do
    pkg-config --exists "${pair%%=*}" || missing+=("${pair#*=}")
  done
  install_packages "${missing[@]}"
}

# install_packages PACKAGE...: with apt, as root or through sudo; none is fine.
install_packages() {
  (($#)) || return 0
  have apt-get || die "missing: $*" "install these packages and start again"
  local as=()
  if ((EUID != 0)); then
    have sudo || die "missing: $*" "as root: apt-get install $*"
    as=(sudo -n)
  fi
  say "installing $*"
  "${as[@]}" apt-get update -qq </dev/null >&2 ||
    say "the package lists could not be refreshed; trying with the old ones"
  "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "$@" </dev/null >&2 ||
    die "could not install $*" "as root: apt-get install $*"
}

# version_at_least HAVE WANTED
version_at_least() { [[ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n1)" == "$2" ]]; }

# ensure_rust [COMPONENT...]: a Rust that is new enough, installed through rustup where there is none.
ensure_rust() {
  export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
  if ! have cargo; then
    ensure_packages rustup=rustup
    say "installing Rust with rustup"
    rustup toolchain install stable --profile minimal </dev/null >&2 &&
      rustup default stable </dev/null >&2 ||
      die "Rust could not be installed" "install Rust $RUST_NEEDED or newer (https://rustup.rs)"
  fi
  local found
  found="$(cd "$ROOT" && rustc --version | awk '{print $2}')"
  version_at_least "$found" "$RUST_NEEDED" ||
    die "Rust $found is too old, $RUST_NEEDED is needed" "rustup update stable"
  local component
  for component in "$@"; do
    (cd "$ROOT" && cargo "$component" --version >/dev/null 2>&1) && continue
    [[ "$component" == fmt ]] && component=rustfmt
    have rustup || die "cargo $component is missing" "install it beside your Rust"
    say "installing $component"
    (cd "$ROOT" && rustup component add "$component" </dev/null >&2) ||
      die "$component could not be installed" "rustup component add $component"
  done
}

# What a build needs: a C compiler and make (liburing is compiled), git (asked by a build script).
ensure_build_tools() {
  ensure_packages cc=build-essential make=make git=git
  ensure_rust "$@"
}

# real_disk DIR: fails when DIR is on a memory file system, where O_DIRECT means nothing.
real_disk() {
  case "$(stat -f -c %T "$1" 2>/dev/null)" in
  tmpfs | ramfs | UNKNOWN | "") return 1 ;;
  *) return 0 ;;
  esac
}

# scratch_dir NAME: makes a new directory on a real disk and prints its path.
scratch_dir() {
  local base
  for base in "${NARAD_SCRATCH:-}" /var/tmp "$TARGET_DIR" "${TMPDIR:-/tmp}"; do
    [[ -n "$base" ]] || continue
    mkdir -p "$base" 2>/dev/null || continue
    if [[ -w "$base" ]] && real_disk "$base"; then
      mktemp -d "$base/$1.XXXXXX"
      return 0
    fi
  done
  die "no writable directory on a real disk was found" "name one: NARAD_SCRATCH=/path $SCRIPT_NAME"
}

# start_time PID: when the kernel started it, in clock ticks; empty when there is no such process.
start_time() {
  local stat
  stat="$(cat "/proc/$1/stat" 2>/dev/null)" || return 0
  stat="${stat##*) }" # the name before it may hold anything
  # shellcheck disable=SC2086
  set -- $stat
  [[ "$1" == Z ]] && return 0 # ended, only not collected yet
  printf '%s\n' "${20}"
}

# remember_process FILE PID: writes down who may be signalled later.
remember_process() { printf '%s %s\n' "$2" "$(start_time "$2")" >"$1"; }

# remembered_pid FILE: prints the pid if that very process is still there.
remembered_pid() {
  local pid started
  [[ -r "$1" ]] && read -r pid started <"$1" || return 1
  [[ -n "$pid" && -n "$started" && "$(start_time "$pid")" == "$started" ]] || return 1
  printf '%s\n' "$pid"
}

# signal_remembered SIGNAL FILE: signals the process written down in FILE, and nobody else.
signal_remembered() {
  local pid
  pid="$(remembered_pid "$2")" || return 1
  kill -s "$1" "$pid" 2>/dev/null
}

# wait_gone FILE SECONDS: waits until the process written down in FILE has ended.
wait_gone() {
  local turns=$(($2 * 10))
  while ((turns-- > 0)); do
    remembered_pid "$1" >/dev/null || return 0
    sleep 0.1
  done
  return 1
}

# http_get HOST:PORT PATH: prints the status code; the body is dropped.
http_get() {
  local host="${1%:*}" port="${1##*:}" line
  line="$(timeout 3 bash -c '
    exec 3<>"/dev/tcp/$1/$2" || exit 1
    printf "GET %s HTTP/1.0\r\nHost: %s\r\n\r\n" "$3" "$1" >&3
    IFS= read -r answer <&3 && printf "%s" "$answer"' _ "$host" "$port" "$2" 2>/dev/null)" || return 1
  line="${line#* }"
  printf '%s\n' "${line%% *}"
}
