#!/usr/bin/env bash
# A local cluster: narad processes on loopback, data in a temporary directory on a real disk.
#
# Kept true: only processes that this script started are ever signalled (pid and start time must
# both match); a founding member's or joiner's arguments are written down once and used again at
# every restart; `down` removes everything that `up` made.
set -Eeuo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/lib.sh"

usage() {
  cat <<'USAGE'
usage: scripts/cluster.sh COMMAND

  up N [-- ARGS]     start a new cluster of N founding members: n1 .. nN
  add [-- ARGS]      start one more node, which joins
  kill ID            SIGKILL; the data stays
  pause ID           SIGSTOP
  resume ID          SIGCONT
  restart ID         SIGTERM if it runs, then start it again on its data
  status [--json]    the nodes, their ports and processes
  server             the addresses for --server or NARAD_SERVER, comma separated
  down               end all nodes and remove their data

ARGS go to `narad serve` (and are used again at every restart).

environment:
  NARAD          the program (default: a release build, else a debug build, in target/)
  NARAD_CLUSTER  directory of the cluster (default: /var/tmp/narad-cluster-UID)
  NARAD_SHARDS   shards a node (default: 1)
USAGE
}

CLUSTER="${NARAD_CLUSTER:-/var/tmp/narad-cluster-$EUID}"
SHARDS="${NARAD_SHARDS:-1}"
READY_SECONDS=60
STOP_SECONDS=20

program() {
  local candidate
  for candidate in "${NARAD:-}" "$TARGET_DIR/release/narad" "$TARGET_DIR/debug/narad"; do
    if [[ -n "$candidate" && -x "$candidate" ]]; then
      readlink -f "$candidate"
      return 0
    fi
    [[ -z "$candidate" || "$candidate" != "${NARAD:-}" ]] || die "NARAD=$NARAD cannot be run"
  done
  die "the narad program is not built" "cargo build --release -p narad, or name one: NARAD=/path $0"
}

need_cluster() {
  [[ -d "$CLUSTER/nodes" ]] || die "there is no cluster in $CLUSTER" "scripts/cluster.sh up 3"
}

need_node() {
  [[ -n "${1:-}" ]] || wrong_usage "which node?"
  need_cluster
  [[ "$1" =~ ^[A-Za-z0-9._-]+$ && -d "$CLUSTER/nodes/$1" ]] ||
    die "there is no node '$1' here" "the nodes are: $(node_ids | tr '\n' ' ')"
}

node_ids() { ls -1 "$CLUSTER/nodes" 2>/dev/null | sort -V; }

# address ID WHAT: what = listen | bulk | http
address() {
  local line
  while read -r line; do
    [[ "$line" == "$2="* ]] && printf '%s\n' "${line#*=}" && return 0
  done <"$CLUSTER/nodes/$1/ports"
}

# port_is_free PORT: nobody listens on it and no socket of this machine uses it.
port_is_free() {
  local hex
  printf -v hex ':%04X ' "$1"
  ! cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '{print $2" "}' | grep -q "$hex"
}

# Three free ports below the range from which the kernel takes ports by itself.
pick_ports() {
  local try base
  for try in {1..200}; do
    base=$((20000 + (RANDOM % 4000) * 3))
    if port_is_free "$base" && port_is_free $((base + 1)) && port_is_free $((base + 2)) &&
      ! grep -qrs ":$base$" "$CLUSTER/nodes"; then
      printf '%s\n' "$base"
      return 0
    fi
  done
  die "no free ports were found"
}

# make_node ID: its directory and ports.
make_node() {
  local base dir="$CLUSTER/nodes/$1"
  base="$(pick_ports)"
  mkdir -p "$dir"
  printf 'listen=127.0.0.1:%s\nbulk=127.0.0.1:%s\nhttp=127.0.0.1:%s\n' \
    "$base" $((base + 1)) $((base + 2)) >"$dir/ports"
}

# write_args ID ARG...: one argument a line.
write_args() {
  local id="$1"
  shift
  printf '%s\n' serve --node-id "$id" --data-dir "$CLUSTER/nodes/$id/data" \
    --listen "$(address "$id" listen)" --bulk "$(address "$id" bulk)" \
    --http "$(address "$id" http)" --shards "$SHARDS" --cpus none "$@" >"$CLUSTER/nodes/$id/args"
}

launch() {
  local id="$1" dir="$CLUSTER/nodes/$1" args narad
  narad="$(program)"
  mapfile -t args <"$dir/args"
  # A session of its own: ctrl-c in the terminal does not reach the nodes.
  setsid "$narad" "${args[@]}" >>"$dir/log" 2>&1 </dev/null &
  remember_process "$dir/pid" $!
  disown $!
}

last_words() {
  printf -- '--- the end of %s\n' "$CLUSTER/nodes/$1/log" >&2
  tail -n 15 "$CLUSTER/nodes/$1/log" >&2 || true
}

# wait_ready ID...: until each answers that it is ready.
wait_ready() {
  local id until=$((SECONDS + READY_SECONDS))
  for id in "$@"; do
    until [[ "$(http_get "$(address "$id" http)" /readyz || true)" == 200 ]]; do
      if ! remembered_pid "$CLUSTER/nodes/$id/pid" >/dev/null; then
        last_words "$id"
        die "node $id has ended" "its log says why: $CLUSTER/nodes/$id/log"
      fi
      if ((SECONDS >= until)); then
        last_words "$id"
        die "node $id is not ready after $READY_SECONDS s" "its log: $CLUSTER/nodes/$id/log"
      fi
      sleep 0.2
    done
  done
}

state_of() {
  local pid stat
  pid="$(remembered_pid "$CLUSTER/nodes/$1/pid")" || { printf 'stopped\n' && return 0; }
  stat="$(cat "/proc/$pid/stat" 2>/dev/null)" || { printf 'stopped\n' && return 0; }
  stat="${stat##*) }"
  case "${stat%% *}" in
  T | t) printf 'paused\n' ;;
  *) printf 'running\n' ;;
  esac
}

servers() {
  local id out=()
  for id in $(node_ids); do out+=("$(address "$id" listen)"); done
  (IFS=, && printf '%s\n' "${out[*]}")
}

up() {
  local count="${1:-}"
  shift || true
  [[ "$count" =~ ^[1-9][0-9]?$ ]] || wrong_usage "up wants a number of nodes from 1 to 99"
  [[ "${1:-}" != -- ]] || shift
  program >/dev/null
  [[ ! -e "$CLUSTER/nodes" ]] ||
    die "there is already a cluster in $CLUSTER" "scripts/cluster.sh down, or another NARAD_CLUSTER"
  mkdir -p "$CLUSTER" && chmod 700 "$CLUSTER"
  real_disk "$CLUSTER" ||
    die "$CLUSTER is in memory, not on a disk" "name a directory on a disk: NARAD_CLUSTER=/path"
  mkdir "$CLUSTER/nodes"
  local i ids=() peers=()
  for ((i = 1; i <= count; i++)); do
    ids+=("n$i")
    make_node "n$i"
    peers+=("n$i=$(address "n$i" listen)")
  done
  local list
  list="$(IFS=, && printf '%s' "${peers[*]}")"
  for i in "${ids[@]}"; do
    write_args "$i" --peers "$list" "$@"
    launch "$i"
  done
  wait_ready "${ids[@]}"
  status
}

add() {
  [[ "${1:-}" != -- ]] || shift
  need_cluster
  local id last join
  last="$(node_ids | tail -n1)"
  id="n$((${last#n} + 1))"
  join="$(servers)"
  make_node "$id"
  write_args "$id" --join "$join" "$@"
  launch "$id"
  wait_ready "$id"
  printf '%s\n' "$id"
}

restart() {
  need_node "${1:-}"
  local dir="$CLUSTER/nodes/$1"
  if remembered_pid "$dir/pid" >/dev/null; then
    signal_remembered CONT "$dir/pid" || true
    signal_remembered TERM "$dir/pid" || true
    wait_gone "$dir/pid" "$STOP_SECONDS" ||
      die "node $1 does not stop" "scripts/cluster.sh kill $1, then restart it"
  fi
  launch "$1"
  wait_ready "$1"
}

send() {
  local signal="$1"
  need_node "${2:-}"
  signal_remembered "$signal" "$CLUSTER/nodes/$2/pid" || die "node $2 does not run"
}

kill_node() {
  need_node "${1:-}"
  signal_remembered KILL "$CLUSTER/nodes/$1/pid" || die "node $1 does not run"
  wait_gone "$CLUSTER/nodes/$1/pid" "$STOP_SECONDS" || die "node $1 is still there"
}

status() {
  need_cluster
  local id pid comma=""
  if [[ "${1:-}" == --json ]]; then
    printf '{"directory":"%s","server":"%s","nodes":[' "$CLUSTER" "$(servers)"
    for id in $(node_ids); do
      pid="$(remembered_pid "$CLUSTER/nodes/$id/pid" || printf null)"
      printf '%s{"id":"%s","state":"%s","pid":%s,"listen":"%s","bulk":"%s","http":"%s","data":"%s","log":"%s"}' \
        "$comma" "$id" "$(state_of "$id")" "$pid" "$(address "$id" listen)" "$(address "$id" bulk)" \
        "$(address "$id" http)" "$CLUSTER/nodes/$id/data" "$CLUSTER/nodes/$id/log"
      comma=,
    done
    printf ']}\n'
    return 0
  fi
  [[ -z "${1:-}" ]] || wrong_usage "status takes --json only"
  printf '%-6s %-8s %-8s %-21s %-21s\n' node state pid listen http
  for id in $(node_ids); do
    printf '%-6s %-8s %-8s %-21s %-21s\n' "$id" "$(state_of "$id")" \
      "$(remembered_pid "$CLUSTER/nodes/$id/pid" || printf -- -)" \
      "$(address "$id" listen)" "$(address "$id" http)"
  done
  printf '\nexport NARAD_SERVER=%s\n' "$(servers)"
}

down() {
  [[ -d "$CLUSTER/nodes" ]] || return 0
  local id
  for id in $(node_ids); do
    signal_remembered CONT "$CLUSTER/nodes/$id/pid" || true
    signal_remembered TERM "$CLUSTER/nodes/$id/pid" || true
  done
  for id in $(node_ids); do
    if ! wait_gone "$CLUSTER/nodes/$id/pid" "$STOP_SECONDS"; then
      say "node $id did not stop in $STOP_SECONDS s, killing it"
      signal_remembered KILL "$CLUSTER/nodes/$id/pid" || true
      wait_gone "$CLUSTER/nodes/$id/pid" 5 || die "node $id is still there"
    fi
  done
  rm -rf -- "$CLUSTER/nodes"
  rmdir -- "$CLUSTER" 2>/dev/null || true
}

command="${1:-}"
shift || true
case "$command" in
up) up "$@" ;;
add) add "$@" ;;
kill) kill_node "$@" ;;
pause) send STOP "$@" ;;
resume) send CONT "$@" ;;
restart) restart "$@" ;;
status) status "$@" ;;
server) need_cluster && servers ;;
down) down ;;
-h | --help | help) usage ;;
"") usage >&2 && exit 2 ;;
*) wrong_usage "unknown command '$command'" ;;
esac
