#!/usr/bin/env bash
# Trains a small network on two nodes, takes away more and more of them, and shows that the job goes
# on as if nothing had happened: bit for bit with two ranks, and then with one rank and with three.
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
# For a loss. The 24 bits of a float round each sum to 6e-8, and training amplifies the difference.
tolerance=1e-4

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
  { left=$(nodes_close); wait; } 2>/dev/null  # The shell would report each process that was killed.
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
    title "build, preset dev: the daemon and the trainer (the first time, some minutes)"
    [ -f $build/build.ninja ] || "$cmake" --preset dev >"$scratch/configure.txt" ||
      { cat "$scratch/configure.txt"; exit 1; }
    "$cmake" --build $build -j "$(nproc)" --target ckptd ckpt_example_trainer || exit 1
  fi
  bin=$PWD/$build/bin
  [ "${build#/}" = "$build" ] || bin=$build/bin
  [ -x "$bin/ckpt_example_trainer" ] || die "$build holds no bin/ckpt_example_trainer"
}

add_nodes() {  # add_nodes NAME...
  local name
  node_add "$@" || die "cannot make the nodes $*"
  for name in "$@"; do secret_of[$name]=$scratch/secret; done
}
start_checkpointed() {  # start_checkpointed PHASE "NODE_OF_RANK_0 NODE_OF_RANK_1..."
  # Faster steps would be over before anybody could be killed.
  start_job "$@" --dir "$scratch/storage" --save-storage-interval 20 --max-ckpt-num 3 --step-ms 20
}
note_loss() {  # The job had reached it when it lost something.
  local rank step
  lost_at=0
  for rank in "${!node_of[@]}"; do
    step=$(last "$rank" step)
    [ "$step" -le "$lost_at" ] || lost_at=$step
  done
  lost_committed=$(last 0 committed)
  lost_ranks=${#node_of[@]}
  lost_when=$(date +%s%N)
}

# tell_resume SOURCE_OF_RANK_0 SOURCE_OF_RANK_1...: the block after each loss; it is also a check.
# A source may be a pattern.
tell_resume() {
  local rank line step newest first="" saved_by="" expected=("$@")
  wait_for "the job to train again" has_begun
  local milliseconds=$((($(date +%s%N) - lost_when) / 1000000))
  [ $# -eq "$lost_ranks" ] || saved_by=", saved by $lost_ranks rank$(plural "$lost_ranks")"
  say "was at step $lost_at, the newest committed one known was $lost_committed"
  for ((rank = 0; rank < $#; ++rank)); do
    line=$(grep -m 1 '"event":"restored"' "$(report_of "$rank")") ||
      die "rank $rank began at step 0: $(head -n 1 "$(report_of "$rank")")"
    step=$(field step <<<"$line")
    printf '   rank %s on %s: resumed after step %s from %s: %s bytes in %.3f s%s\n' "$rank" \
      "${node_of[$rank]}" "$step" "$(field source_name <<<"$line")" "$(field bytes <<<"$line")" \
      "$(field seconds <<<"$line")" "$saved_by"
    [[ $(field source <<<"$line") == ${expected[$rank]} ]] ||
      die "rank $rank resumed from $(field source <<<"$line"), not from ${expected[$rank]}"
    [ "$(field saved_by <<<"$line")" = "$lost_ranks" ] ||
      die "rank $rank: the step was saved by $(field saved_by <<<"$line") ranks"
    [ "${first:=$step}" = "$step" ] || die "the ranks resumed after different steps"
    newest=$(field newest_seen <<<"$line")
    [ "${newest:-$step}" -ge "$step" ] || die "rank $rank has seen step $newest and resumed later"
  done
  # A step that was captured while its trainer died is not in its report, and is not lost either.
  [ "$lost_at" -gt "$first" ] || lost_at=$first
  resumed_at=$first
  printf '   steps lost: %s (newest seen by a daemon: %s); ' $((lost_at - first)) \
    "${newest:-none is left}"
  printf 'from the loss to training again: %s.%03d s\n' $((milliseconds / 1000)) \
    $((milliseconds % 1000))
}
plural() {
  [ "$1" -eq 1 ] || echo s
}
# steps_of PHASE...: of each step that rank 0 reports: its number, its loss, and a digest of the
# weights that gave this loss.
steps_of() {
  local name
  for name in "$@"; do
    sed -n 's/.*"step":\([0-9]*\),"loss":\([^,]*\),"weights":"\([^"]*\)".*/\1 \2 \3/p' \
      "$scratch/$name.rank0.jsonl"
  done
}

# --- the story ---

train_reference() {
  title "the reference: $steps steps, nobody dies, no checkpoints"
  start_job reference "A B" --no-checkpoints
  wait_for "the reference to end" have_ended
  check_end
}
lose_trainer() {
  title "1. rank 0 is killed, in mid-step"
  start_checkpointed first "A B"
  wait_for "step 40 to be committed" has_reached committed 40
  note_loss
  end_ranks KILL 0
  # Rank 1 fails for want of its partner, as with any collective; the launcher ends it.
  end_ranks TERM 1
  start_checkpointed second "A B"
  tell_resume own_memory own_memory
}
lose_node() {
  title "2. node A is lost: trainer, daemon, memory, network; C takes its place"
  wait_for "step 80 to be committed" has_reached committed 80
  note_loss
  node_lose A
  end_ranks KILL 0
  end_ranks TERM 1
  add_nodes C
  start_checkpointed third "C B"
  tell_resume peer_memory own_memory
}
lose_memory() {
  title "3. all trainers and all daemons are killed: no memory is left"
  wait_for "step 120 on storage" has_reached durable 120
  note_loss
  kill_and_wait KILL "$(node_daemon B)" "$(node_daemon C)" "${trainer[@]}"
  end_ranks KILL 0 1
  start_checkpointed fourth "C B"
  tell_resume storage storage
}
lose_node_for_good() {
  title "4. node C is lost, too, and nobody replaces it: B goes on alone, with one rank"
  wait_for "step 160 to be committed" has_reached committed 160
  note_loss
  node_lose C
  end_ranks KILL 0
  end_ranks TERM 1
  start_checkpointed fifth B
  tell_resume own_memory
  shrunk_at=$resumed_at
  [ "$(steps_of fifth | head -n 1 | cut -d ' ' -f 3)" = \
    "$(steps_of reference | sed -n "$((shrunk_at + 1))s/.* //p")" ] ||
    die "the weights after step $shrunk_at are not those of the reference"
  say "each of the two ranks had a half of the weights and of Adam's state; now rank 0 has all"
}
grow() {
  title "5. nodes D and E come: the job is stopped, and goes on with three ranks"
  wait_for "step 240 to be committed" has_reached committed 240
  note_loss
  end_ranks TERM 0
  add_nodes D E
  start_checkpointed sixth "B D E"
  # B sends copies to D and E as soon as they are there: one may arrive before its rank asks.
  tell_resume own_memory "*_memory" "*_memory"
}

compare() {
  local phases="first second third fourth" rank difference
  title "the end, compared with the reference"
  wait_for "the end" have_ended
  check_end
  if comm -13 <(steps_of reference | sort) <(steps_of $phases | sort -u) | grep .; then
    die "these steps of two ranks differ from those of the reference"
  fi
  say "up to step $shrunk_at, with two ranks: the weights and the loss of each step are equal," \
    "bit for bit"
  # Each step after it has the same samples, and adds up their gradients in another order.
  difference=$(LC_ALL=C awk 'NR == FNR { reference[$1] = $2; next }
    { difference = ($2 - reference[$1]) / reference[$1]
      if (difference < 0) difference = -difference
      if (difference > largest) largest = difference }
    END { printf "%.1e", largest }' <(steps_of reference) <(steps_of fifth sixth))
  say "after it, with one rank and with three, which add up the gradients in another order:"
  say "the losses differ by at most $difference of their value; $tolerance is allowed"
  LC_ALL=C awk "BEGIN { exit !($difference <= $tolerance) }" || die "the losses differ too much"
  for rank in 1 2; do
    cmp "$scratch/sixth.rank0.weights" "$scratch/sixth.rank$rank.weights" ||
      die "the final weights of rank $rank differ from those of rank 0"
  done
}

scratch=$(mktemp -d "${TMPDIR:-/tmp}/quickstart.XXXXXX")
trap finish EXIT
trap 'exit 130' INT TERM
prepare_build
make_secret "$scratch/secret"
nodes_open "$scratch" $plain
add_nodes A B
if [ -n "$nodes_prefix" ]; then
  say "two nodes, each a network namespace: A ${node_address[A]}, B ${node_address[B]}"
else
  say "two nodes, each a loopback address: A ${node_address[A]}, B ${node_address[B]}"
fi
train_reference
lose_trainer
lose_node
lose_memory
lose_node_for_good
grow
compare
is_done=yes
title "done: four losses, and three numbers of ranks"
