#!/usr/bin/env bash
# A working day of an operator, on five nodes that are machines of their own as far as the network goes: each
# in a network namespace, all on one bridge. Two join, two are drained at once, the leader is killed in the middle, one drain
# is cancelled, one node is cut off and comes back. Ends with the ownership that was wanted and no acknowledged record lost.
#
# Kept true: only namespaces, links and processes that this script made are touched, and all of them go at the end.
set -Eeuo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/lib.sh"

usage() {
  cat <<'USAGE'
usage: scripts/session.sh

Needs root (network namespaces) and a built narad. Exits 0 when the session ended as planned with 0 lost, 1 when
not, and 0 with a reason where namespaces are not permitted.

environment:
  NARAD        the program (default: a release build, else a debug build, in target/)
  RECORDS      records produced in each part of the session (default: 3000)
USAGE
}

case "${1:-}" in
"") ;;
-h | --help)
  usage
  exit 0
  ;;
*) wrong_usage "unknown argument '$1'" ;;
esac

RECORDS="${RECORDS:-3000}"
# Names are short: an interface has 15 letters at most. The network is one that nobody routes.
TAG="nrd$$"
BRIDGE="${TAG}b"
NET="198.18.77"

skip() {
  printf '%s: skipped: %s\n' "$SCRIPT_NAME" "$1"
  exit 0
}

((EUID == 0)) || skip "network namespaces want root"
have ip || skip "the command ip is missing (package iproute2)"
have jq || skip "the command jq is missing"
ip netns add "${TAG}t" 2>/dev/null || skip "network namespaces are not permitted here"
ip netns del "${TAG}t"

for candidate in "${NARAD:-}" "$TARGET_DIR/release/narad" "$TARGET_DIR/debug/narad"; do
  if [[ -n "$candidate" && -x "$candidate" ]]; then
    PROGRAM="$(readlink -f "$candidate")"
    break
  fi
done
[[ -n "${PROGRAM:-}" ]] || die "the narad program is not built" "cargo build -p narad, or name one: NARAD=/path $0"

DIR="$TARGET_DIR/tmp/session-$$"
mkdir -p "$DIR"
declare -A PID=()

cleanup() {
  local code=$? node
  trap - EXIT
  for node in "${!PID[@]}"; do kill -KILL "${PID[$node]}" 2>/dev/null || true; done
  [[ -z "${PRODUCER:-}" ]] || kill "$PRODUCER" 2>/dev/null || true
  wait 2>/dev/null || true
  for node in 1 2 3 4 5 0; do ip netns del "$TAG$node" 2>/dev/null || true; done
  ip link del "$BRIDGE" 2>/dev/null || true
  if ((code == 0)); then
    rm -rf "$DIR"
  else
    for node in 1 2 3 4 5; do
      [[ -f "$DIR/n$node.log" ]] && printf -- '--- n%s\n' "$node" >&2 && tail -n 20 "$DIR/n$node.log" >&2
    done
    say "FAILED; logs and data are in $DIR"
  fi
  exit "$code"
}
trap cleanup EXIT

# The bridge, and one namespace a machine; 0 is the operator's workstation.
ip link add "$BRIDGE" type bridge
ip link set "$BRIDGE" up
for node in 0 1 2 3 4 5; do
  ip netns add "$TAG$node"
  ip link add "${TAG}v$node" type veth peer name eth0 netns "$TAG$node"
  ip link set "${TAG}v$node" master "$BRIDGE" up
  ip -n "$TAG$node" addr add "$NET.$((node + 1))/24" dev eth0
  ip -n "$TAG$node" link set eth0 up
  ip -n "$TAG$node" link set lo up
done

addr() { printf '%s.%d:7420' "$NET" $((${1#n} + 1)); }
SERVERS="$(addr n1),$(addr n2),$(addr n3)"
# A client command, from the workstation.
narad() { ip netns exec "${TAG}0" env NARAD_SERVER="$SERVERS" "$PROGRAM" "$@"; }
event() { printf '\n%(%H:%M:%S)T  == %s\n' -1 "$*"; }

# Short enough for a session of a minute or two, with the order that they need.
TIMES=(--heartbeat-ms=250 --election-min-ms=800 --election-max-ms=1600 --move-lease-ms=3000 --clock-drift-ms=200
  --dead-after-ms=4000 --force-promote-after-ms=30000 --freeze-ttl-ms=2000 --segment-bytes=16777216
  --wal-cap-bytes=268435456 --cpus=none --shards=1 --insecure)

start() {
  local node="$1"
  shift
  ip netns exec "$TAG${node#n}" "$PROGRAM" serve --node-id "$node" --data-dir "$DIR/$node" --listen "$(addr "$node")" \
    "${TIMES[@]}" "$@" >>"$DIR/$node.log" 2>&1 </dev/null &
  PID[$node]=$!
}

# wait_until WHAT COMMAND...: bounded, for a busy machine.
wait_until() {
  local what="$1" end=$((SECONDS + 120))
  shift
  until "$@"; do
    ((SECONDS < end)) || die "waited too long: $what"
    sleep 0.5
  done
}

members() { narad cluster members --json; }
field() { members | jq -r --arg id "$1" ".members[] | select(.id == \$id) | .$2"; }
leader() { members | jq -r .leader; }
is() { [[ "$(field "$1" "$2" 2>/dev/null)" == "$3" ]]; }
has_leader() { [[ -n "$(leader 2>/dev/null)" ]]; }
gone() { members >"$DIR/view" 2>/dev/null && [[ "$(jq -r --arg id "$1" 'any(.members[]; .id == $id)' "$DIR/view")" == false ]]; }
at_rest() { narad cluster moves --wait --for-seconds 120 >/dev/null; }

PARTS=0
# Each line names itself, so that what is missing has a name.
produce() {
  PARTS=$((PARTS + 1))
  seq -f "part-$PARTS-%06g" "$RECORDS" >>"$DIR/sent"
  seq -f "part-$PARTS-%06g" "$RECORDS" | narad produce orders --rate 200KiB/s
}

event "three founders"
FOUNDERS="n1=$(addr n1),n2=$(addr n2),n3=$(addr n3)"
for node in n1 n2 n3; do start "$node" --peers "$FOUNDERS"; done
wait_until "a leader" has_leader
for node in n1 n2 n3; do wait_until "$node is alive" is "$node" status alive; done
narad topic create orders --partitions 12
for partition in 0 1 2 3 4 5 6 7 8 9 10 11; do
  narad produce orders --partition "$partition" --count 8000 --size 1KiB >/dev/null
done
produce

event "n4 and n5 join while records come in"
produce &
PRODUCER=$!
start n4 --join "$(addr n1),$(addr n2)"
start n5 --join "$(addr n2),$(addr n3)"
wait_until "n4 is a member" is n4 status alive
wait_until "n5 is a member" is n5 status alive
narad cluster plan
timeout --preserve-status -s INT 5 ip netns exec "${TAG}0" env NARAD_SERVER="$SERVERS" "$PROGRAM" cluster moves --watch || true
wait "$PRODUCER"
PARTS=$((PARTS + 1))
at_rest
narad cluster members

LEADER="$(leader)"
OTHERS=()
for node in n1 n2 n3 n4 n5; do [[ "$node" == "$LEADER" ]] || OTHERS+=("$node"); done
STAYS="${OTHERS[0]}" LEAVES="${OTHERS[1]}"
event "$STAYS and $LEAVES are drained at once, slowly; $LEADER leads"
narad cluster throttle 400KiB/s
narad cluster decommission "$STAYS"
narad cluster decommission "$LEAVES"
sleep 2
narad cluster moves

event "the leader $LEADER is killed in the middle"
kill -KILL "${PID[$LEADER]}"
wait "${PID[$LEADER]}" 2>/dev/null || true
other_leader() { has_leader && [[ "$(leader)" != "$LEADER" ]]; }
wait_until "another leader" other_leader
printf 'now %s leads\n' "$(leader)"
narad cluster members

event "the drain of $STAYS is cancelled"
narad cluster decommission "$STAYS" --cancel
event "$LEADER comes back on its disk"
start "$LEADER"
wait_until "$LEADER is alive" is "$LEADER" status alive
narad cluster throttle unlimited
produce

CUT="${OTHERS[2]}"
event "$CUT is cut off"
ip link set "${TAG}v${CUT#n}" down
wait_until "$CUT is dead" is "$CUT" status dead
narad cluster members
produce
event "$CUT is back on the network"
ip link set "${TAG}v${CUT#n}" up
wait_until "$CUT is alive" is "$CUT" status alive

event "the drain of $LEAVES ends"
gone "$LEAVES" || narad cluster decommission "$LEAVES" --wait
wait_until "$LEAVES is out" gone "$LEAVES"
wait "${PID[$LEAVES]}" || die "$LEAVES did not end in order"
unset "PID[$LEAVES]"
at_rest
narad cluster members
narad cluster moves --history

event "what is owned by whom, and what is lost"
OWNED="$(members | jq -c '[.members[].owned] | sort')"
printf 'owned: %s\n' "$OWNED"
[[ "$OWNED" == "[3,3,3,3]" ]] || die "four nodes should own three partitions each: $OWNED"
END=$((SECONDS + 120))
: >"$DIR/seen"
while :; do
  narad consume orders | grep '^part-' >>"$DIR/seen" || true
  LOST="$(sort -u "$DIR/sent" | comm -23 - <(sort -u "$DIR/seen") | wc -l)"
  ((LOST > 0 && SECONDS < END)) || break
done
printf 'acknowledged: %d, seen: %d, lost: %d\n' "$(sort -u "$DIR/sent" | wc -l)" "$(sort -u "$DIR/seen" | wc -l)" "$LOST"
((LOST == 0)) || die "$LOST acknowledged records are lost"
