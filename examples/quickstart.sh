#!/usr/bin/env bash
# Trains a small network on two nodes, takes away more and more of them, and shows that the job goes
# on as if nothing had happened, bit for bit.
#
#   examples/quickstart.sh [--plain] [--keep] [--build DIR] [--width N]
#
# A node is a network namespace with a daemon of its own, or with --plain, and where namespaces are
# not allowed, a loopback address. --keep leaves all files of the run. --build takes the programs of
# a build directory as they are. --width: neurons of a layer, which is the size of the checkpoints.
set -u -o pipefail
cd "$(dirname "$0")/.."
. tests/packages.sh
. examples/training/nodes.sh

build=""
plain=""
keep=""
width=256
steps=180
deadline_seconds=60

usage() {
  sed -n '2,9s/^# \{0,1\}//p' examples/quickstart.sh
}
while [ $# -gt 0 ]; do
  case "$1" in
    --plain) plain=plain ;;
    --keep) keep=yes ;;
    --build) build=${2:?--build wants a directory}; shift ;;
    --width) width=${2:?--width wants a number}; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "examples/quickstart.sh: there is no option $1" >&2; exit 2 ;;
  esac
  shift
done

declare -A trainer=()        # Pid, by rank.
declare -A node_of=()        # By rank.
phase=""                     # Names the report files of the trainers that run now.
nodes_list=""
incarnation=0
expected_end=""

# --- words ---

title() {
  printf '\n== %s (%ss)\n' "$1" "$SECONDS"
}
say() {
  printf '   %s\n' "$*"
}
die() {
  local file
  printf '\nFAILED: %s\n' "$1" >&2
  for file in "$scratch"/*/ckptd.log "$scratch/$phase".rank*.txt; do
    [ -s "$file" ] && printf -- '--- %s\n' "$file" && tail -n 15 "$file"
  done >&2
  exit 1
}
finish() {
  local status=$? left
  trap - EXIT
  if left=$(nodes_close); then
    [ -z "$expected_end" ] || say "clean: no process, no socket, no namespace, no memory is left"
  else
    echo "FAILED: left behind: $left" >&2
    status=1
  fi
  if [ -n "$keep" ]; then
    say "files of this run: $scratch"
  else
    rm -rf "$scratch"
  fi
  exit "$status"
}

# --- what the trainers report ---

report_of() {  # report_of RANK
  echo "$scratch/$phase.rank$1.jsonl"
}
field() {  # field NAME: of the JSON line on standard input; nothing when absent or null
  sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p" | grep -v '^null$'
}
last() {  # last RANK NAME: in its newest report of a step, or 0
  local value
  value=$(grep '"event":"step"' "$(report_of "$1")" 2>/dev/null | tail -n 1 | field "$2")
  echo "${value:-0}"
}
is_alive() {
  kill -0 "$1" 2>/dev/null
}

# wait_for WHAT CONDITION...: until it holds. A trainer that ends before has failed, unless their end
# is what is waited for.
wait_for() {
  local what=$1 give_up=$((SECONDS + deadline_seconds)) told=$SECONDS rank
  shift
  until "$@"; do
    for rank in "${!trainer[@]}"; do
      is_alive "${trainer[$rank]}" || [ "$1" = have_ended ] || "$@" ||
        die "waiting for $what: rank $rank has ended"
    done
    [ "$SECONDS" -lt "$give_up" ] || die "waiting for $what: nothing for $deadline_seconds s"
    if [ "$SECONDS" -ge $((told + 2)) ]; then
      told=$SECONDS
      say "... step $(last 0 step) of $steps, waiting for $what"
    fi
    sleep 0.02
  done
}
has_reached() {  # has_reached LEVEL STEP: every rank has heard of it
  [ "$(last 0 "$1")" -ge "$2" ] && [ "$(last 1 "$1")" -ge "$2" ]
}
has_begun() {
  grep -qs '"event":"step"' "$(report_of 0)" && grep -qs '"event":"step"' "$(report_of 1)"
}
have_ended() {
  ! is_alive "${trainer[0]}" && ! is_alive "${trainer[1]}"
}

# --- the job ---

prepare_build() {
  local targets="ckptd ckpt ckpt_example_trainer"
  if [ -z "$build" ]; then
    build=build/dev
    need_packages $packages_build iproute2 || exit 2
    title "build, preset dev (only what this needs)"
    "$cmake" --preset dev -DCKPT_BUILD_TESTS=OFF -DCKPT_BUILD_BENCH=OFF >"$scratch/configure" ||
      { cat "$scratch/configure"; exit 1; }
    "$cmake" --build "$build" -j "$(nproc)" --target $targets || exit 1
  fi
  bin=$PWD/$build/bin
  [ "${build#/}" = "$build" ] || bin=$build/bin
  [ -x "$bin/ckpt_example_trainer" ] || die "$build holds no bin/ckpt_example_trainer"
}

start_rank() {  # start_rank RANK OPTION...: on its node, in the background
  local rank=$1 node=${node_of[$1]}
  shift
  ( on "$node" "$bin/ckpt_example_trainer" --job quickstart --rank "$rank" --world 2 \
    --width "$width" --layers 4 --steps "$steps" --daemon "$bin/ckptd" --node "$node" \
    --nodes "$nodes_list" --incarnation "$incarnation" --secret-file "$scratch/secret" \
    --exchange "${node_address[${node_of[0]}]}:$((nodes_port + 1))" \
    --report "$(report_of "$rank")" --weights "$scratch/$phase.rank$rank.weights" "$@" ) \
    >"$scratch/$phase.rank$rank.txt" 2>&1 </dev/null &
  trainer[$rank]=$!
}
start_job() {  # start_job PHASE NODE_OF_RANK_0 NODE_OF_RANK_1 OPTION...
  phase=$1
  node_of=([0]=$2 [1]=$3)
  nodes_list="$2@${node_address[$2]}:$nodes_port,$3@${node_address[$3]}:$nodes_port"
  incarnation=$((incarnation + 1))
  shift 3
  start_rank 0 "$@"
  start_rank 1 "$@"
}
start_checkpointed() {  # start_checkpointed PHASE NODE_OF_RANK_0 NODE_OF_RANK_1
  # Faster steps would be over before anybody could be killed.
  start_job "$@" --dir "$scratch/storage" --save-storage-interval 20 --max-ckpt-num 3 --step-ms 20
}
end_ranks() {  # end_ranks SIGNAL RANK...
  local rank signal=$1
  shift
  for rank in "$@"; do
    kill_and_wait "$signal" "${trainer[$rank]}" || die "rank $rank does not end"
    wait "${trainer[$rank]}" 2>/dev/null
    unset "trainer[$rank]"
  done
}
note_loss() {  # What the job had reached when it lost something.
  lost_at=$(last 0 step)
  [ "$(last 1 step)" -gt "$lost_at" ] && lost_at=$(last 1 step)
  lost_committed=$(last 0 committed)
  lost_when=$(date +%s%N)
}

# tell_resume SOURCE_OF_RANK_0 SOURCE_OF_RANK_1: the block after each loss, which is also a check.
tell_resume() {
  local rank line step first="" expected=("$1" "$2")
  wait_for "the job to train again" has_begun
  local milliseconds=$((($(date +%s%N) - lost_when) / 1000000))
  say "was at step $lost_at, the newest committed one known was $lost_committed"
  for rank in 0 1; do
    line=$(grep -m 1 '"event":"restored"' "$(report_of "$rank")") ||
      die "rank $rank began at step 0: $(head -n 1 "$(report_of "$rank")")"
    step=$(field step <<<"$line")
    printf '   rank %s on %s: resumed after step %s from %s: %s bytes in %.3f s\n' "$rank" \
      "${node_of[$rank]}" "$step" "$(field source_name <<<"$line")" "$(field bytes <<<"$line")" \
      "$(field seconds <<<"$line")"
    [ "$(field source <<<"$line")" = "${expected[$rank]}" ] ||
      die "rank $rank resumed from $(field source <<<"$line"), not from ${expected[$rank]}"
    [ "${first:=$step}" = "$step" ] || die "the ranks resumed after different steps"
  done
  # A step that was captured while its trainer died is not in its report, and is not lost either.
  [ "$lost_at" -gt "$first" ] || lost_at=$first
  printf '   steps lost: %s; from the loss to training again: %s.%03d s\n' $((lost_at - first)) \
    $((milliseconds / 1000)) $((milliseconds % 1000))
}

# --- the story ---

train_reference() {
  title "the reference: $steps steps, nobody dies, no checkpoints"
  start_job reference A B --no-checkpoints
  wait_for "the reference to end" have_ended
  check_end
}
check_end() {  # Both trainers have ended: well?
  local rank
  for rank in 0 1; do
    wait "${trainer[$rank]}" || die "rank $rank ended with code $?"
    unset "trainer[$rank]"
    say "$(grep 'done at' "$scratch/$phase.rank$rank.txt")"
  done
}

lose_trainer() {
  title "1. rank 0 is killed, in mid-step"
  start_checkpointed first A B
  wait_for "step 40 to be committed" has_reached committed 40
  note_loss
  end_ranks KILL 0
  # Rank 1 fails for want of its partner, as with any collective; the launcher ends it.
  end_ranks TERM 1
  start_checkpointed second A B
  tell_resume own_memory own_memory
}
lose_node() {
  title "2. node A is lost: trainer, daemon, memory, network; C takes its place"
  wait_for "step 80 to be committed" has_reached committed 80
  note_loss
  node_lose A
  end_ranks KILL 0
  end_ranks TERM 1
  node_add C || die "cannot make node C"
  start_checkpointed third C B
  tell_resume peer_memory own_memory
}
lose_memory() {
  title "3. all trainers and all daemons are killed: no memory is left"
  wait_for "step 120 on storage" has_reached durable 120
  note_loss
  kill_and_wait KILL "$(node_daemon B)" "$(node_daemon C)" "${trainer[@]}"
  end_ranks KILL 0 1
  start_checkpointed fourth C B
  tell_resume storage storage
}
compare() {
  local rank
  title "the end, compared with the reference"
  wait_for "the end" have_ended
  check_end
  for rank in 0 1; do
    cmp "$scratch/reference.rank$rank.weights" "$scratch/fourth.rank$rank.weights" ||
      die "rank $rank: the final weights differ from those of the uninterrupted run"
    say "rank $rank: $(stat -c %s "$scratch/fourth.rank$rank.weights") bytes of weights, bit for bit equal"
  done
}

scratch=$(mktemp -d "${TMPDIR:-/tmp}/quickstart.XXXXXX")
trap finish EXIT
trap 'exit 130' INT TERM
prepare_build
(umask 077 && head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n' >"$scratch/secret")
nodes_open "$scratch" $plain
node_add A B || die "cannot make the nodes"
if [ -n "$nodes_prefix" ]; then
  say "two nodes, each a network namespace: A ${node_address[A]}, B ${node_address[B]}"
else
  say "two nodes, each a loopback address: A ${node_address[A]}, B ${node_address[B]}"
fi
train_reference
lose_trainer
lose_node
lose_memory
compare
expected_end=yes
title "done: three losses, and not one bit of difference"
