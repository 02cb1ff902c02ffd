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
. examples/training/job.sh

build=""
plain=""
keep=""
width=256
steps=480

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

is_done=""

finish() {
  local status=$? left
  trap - EXIT
  { left=$(nodes_close); wait; } 2>/dev/null  # The shell would tell of each process that it killed.
  if [ -n "$left" ]; then
    echo "FAILED: left behind: $left" >&2
    status=1
  elif [ -n "$is_done" ]; then
    say "clean: no process, no socket, no namespace, no memory is left"
  fi
  if [ -n "$keep" ]; then
    say "files of this run: $scratch"
  else
    rm -rf "$scratch"
  fi
  exit "$status"
}

# --- the job ---

prepare_build() {
  if [ -z "$build" ]; then
    build=build/dev
    need_packages $packages_build catch2 iproute2 || exit 2
    title "build, preset dev: the daemon and the trainer"
    [ -f $build/build.ninja ] || "$cmake" --preset dev >"$scratch/configure.txt" ||
      { cat "$scratch/configure.txt"; exit 1; }
    "$cmake" --build $build -j "$(nproc)" --target ckptd ckpt_example_trainer || exit 1
  fi
  bin=$PWD/$build/bin
  [ "${build#/}" = "$build" ] || bin=$build/bin
  [ -x "$bin/ckpt_example_trainer" ] || die "$build holds no bin/ckpt_example_trainer"
}

start_checkpointed() {  # start_checkpointed PHASE NODE_OF_RANK_0 NODE_OF_RANK_1
  # Faster steps would be over before anybody could be killed.
  start_job "$@" --dir "$scratch/storage" --save-storage-interval 20 --max-ckpt-num 3 --step-ms 20
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
  local rank bytes
  title "the end, compared with the reference"
  wait_for "the end" have_ended
  check_end
  for rank in 0 1; do
    cmp "$scratch/reference.rank$rank.weights" "$scratch/fourth.rank$rank.weights" ||
      die "rank $rank: the final weights differ from those of the uninterrupted run"
    bytes=$(stat -c %s "$scratch/fourth.rank$rank.weights")
    say "rank $rank: $bytes bytes of weights, bit for bit equal"
  done
}

scratch=$(mktemp -d "${TMPDIR:-/tmp}/quickstart.XXXXXX")
trap finish EXIT
trap 'exit 130' INT TERM
prepare_build
make_secret "$scratch/secret"
secret_of=([0]=$scratch/secret [1]=$scratch/secret)
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
is_done=yes
title "done: three losses, and not one bit of difference"
