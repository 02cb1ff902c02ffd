#!/usr/bin/env bash
# Goal:   a whole job, two daemons and two trainers, survives every loss that it claims to survive,
#         and a mistake in its set-up is said clearly, costs checkpoints, and never the training.
# Method: tests/cluster/cluster.sh BUILD CASE runs real processes of BUILD on loopback addresses.
#         Every wait has a deadline; what a case waits for is an event in a report or in a log.
set -u -o pipefail
cd "$(dirname "$0")/../.."
. examples/training/nodes.sh
. examples/training/job.sh

build=${1:?which build directory?}
case=${2:?which case: quickstart, no_secret, wrong_secret, busy_port, rot or hung_writer?}
bin=$build/bin
width=64
steps=40
listener=""

finish() {
  local status=$? left
  trap - EXIT
  [ -z "$listener" ] || kill "$listener" 2>/dev/null
  { left=$(nodes_close); wait; } 2>/dev/null  # The shell would tell of each process that it killed.
  if [ -n "$left" ]; then
    echo "FAILED cluster: left behind: $left"
    status=1
  fi
  rm -rf "$scratch"
  [ "$status" -ne 0 ] || echo "ok cluster: $case"
  exit "$status"
}
expect() {  # expect WHAT PATTERN FILE...
  local what=$1 pattern=$2
  shift 2
  grep -qE "$pattern" "$@" || die "$what: no line like '$pattern' in $*"
  say "$what: $(grep -hE -m 1 "$pattern" "$@" | cut -c1-160)"
}
expect_times() {  # expect_times COUNT WHAT PATTERN FILE
  local count
  count=$(grep -cE "$3" "$4")
  [ "$count" -eq "$1" ] || die "$2: $count lines, not $1, like '$3'"
  say "$2: $count lines"
}
has_line() {  # has_line PATTERN FILE
  grep -qsE "$1" "$2"
}
has_daemon() {  # has_daemon NAME
  node_daemon "$1" >/dev/null
}
log_of() {
  echo "$scratch/$1/ckptd.log"
}
open_cluster() {
  nodes_open "$scratch" plain
  node_add A B
  make_secret "$scratch/secret"
  secret_of=([A]=$scratch/secret [B]=$scratch/secret)
  # The first save waits so long for ranks that will not come.
  export LIBCKPT_OPEN_DEADLINE=2s
}
train_to_the_end() {
  wait_for "the end" have_ended
  check_end
}
nothing_was_saved() {
  expect "saves are skipped" '"save":"skipped_unavailable","committed":null' "$(report_of 0)"
  if grep -q '"save":"started"' "$(report_of 0)" "$(report_of 1)"; then
    die "a step was captured that no two nodes can agree on"
  fi
}

case_quickstart() {
  local output=$scratch/output rank
  bash examples/quickstart.sh --plain --width 64 --build "$build" 2>&1 | tee "$output" ||
    die "the quickstart failed"
  for rank in 0 1; do
    expect "own memory" "rank $rank on [AB]: resumed after step [0-9]+ from own memory" "$output"
    expect "storage" "rank $rank on [BC]: resumed after step [0-9]+ from storage" "$output"
  done
  expect "the replaced node" "rank 0 on C: resumed after step [0-9]+ from node B" "$output"
  expect "one rank" "rank 0 on B: resumed .* from own memory: .*, saved by 2 ranks" "$output"
  # D may have a copy by then.
  expect "three ranks" "rank 2 on E: resumed .* from nodes? [BD](, [BD])?: .* by 1 rank" "$output"
  expect "the same bits" "up to step [0-9]+, with two ranks: .* are equal, bit for bit" "$output"
  expect "the same losses" "the losses differ by at most [0-9.e-]+ of their value" "$output"
  # Four losses and a growth: what each recovery tells is whole.
  local seconds='[0-9]+\.[0-9]{3} s' resumed='resumed after step [1-9][0-9]* from'
  expect_times 5 "reached" '^   was at step [1-9][0-9]*, the newest committed one known' "$output"
  expect_times 10 "step, source, bytes, seconds" \
    "^   rank [0-2] on [A-E]: $resumed .+: [1-9][0-9]* bytes in $seconds" \
    "$output"
  local seen='[(]newest seen by a daemon: ([0-9]+|none is left)[)]'
  expect_times 5 "steps lost" \
    "^   steps lost: [0-9]+ $seen; from the loss to training again: $seconds\$" "$output"
  expect "nothing left" "clean: no process, no socket, no namespace, no memory" "$output"
}
case_no_secret() {
  open_cluster
  secret_of=()
  title "without a secret: trains, says so, saves nothing"
  start_job silent "A B" --fresh
  train_to_the_end
  expect "the trainer says so" "warning.*rank 0 of job quickstart: no secret: no peer copies" \
    "$scratch/silent.rank0.txt"
  expect "the daemon says so" "warning.*no secret: no peer copies" "$(log_of A)"
  nothing_was_saved
  title "nor does it begin at step 0 where a checkpoint may be: a restore fails at once"
  start_job asking "A B"
  wait_for "the end" have_ended
  wait "${trainer[0]}"
  [ $? -eq 2 ] || die "rank 0 trained on after a restore that could not be decided"
  expect "the restore says so" "no secret: its 2 nodes cannot agree" "$scratch/asking.rank0.txt"
}
case_wrong_secret() {
  open_cluster
  make_secret "$scratch/another"
  secret_of[B]=$scratch/another
  title "node B has another secret: it is refused, both train on"
  start_job refused "A B" --fresh
  train_to_the_end
  expect "A refuses B" "warning.*node B of job quickstart did not prove itself" "$(log_of A)"
  expect "B logs it" "warning.*peer=A not reached.*(secret|prove)" "$(log_of B)"
  nothing_was_saved
}
case_busy_port() {
  open_cluster
  steps=300
  deadline_seconds=150  # On a machine with much else to do.
  title "somebody else has the port of node A: both train; when it is free, steps are committed"
  /usr/bin/python3 -c "
import socket, sys, time
taken = socket.create_server(('${node_address[A]}', $nodes_port))
print('taken', flush=True)
time.sleep(120)" >"$scratch/listener.txt" &
  listener=$!
  wait_for "the port to be taken" has_line taken "$scratch/listener.txt"
  start_job busy "A B" --fresh --step-ms 60
  wait_for "the warning" has_line "warning.*cannot listen for peers on" "$(log_of A)"
  expect "the warning" "warning.*cannot listen for peers on ${node_address[A]}" "$(log_of A)"
  wait_for "training without checkpoints" has_reached step 3
  expect "nothing is committed" '"event":"step","step":3,.*"committed":null' "$(report_of 0)"
  kill_and_wait TERM "$listener"
  listener=""
  wait_for "a committed step" has_reached committed 1
  say "committed: step $(last 0 committed)"
  train_to_the_end
}

have_stored() {  # have_stored COUNT: so many checkpoints
  [ "$(find "$scratch/storage" -maxdepth 1 -name 'step-*' | wc -l)" -ge "$1" ]
}
case_rot() {
  local rotten older rank
  open_cluster
  steps=400
  title "all memory is lost, and a bit of the newest checkpoint, of the rank of node B, is wrong"
  local stored=(--dir "$scratch/storage" --save-storage-interval 20 --max-ckpt-num 3)
  start_job before "A B" "${stored[@]}" --step-ms 10
  wait_for "two checkpoints" have_stored 2  # Of the steps that are due, a busy machine skips some.
  kill_and_wait KILL "$(node_daemon A)" "$(node_daemon B)" "${trainer[@]}"
  end_ranks KILL 0 1
  rotten=$(ls -d "$scratch"/storage/step-* | tail -n 1)
  older=$(ls -d "$scratch"/storage/step-* | tail -n 2 | head -n 1)
  [ "$older" != "$rotten" ] || die "there is one checkpoint only: $rotten"
  /usr/bin/python3 - "$rotten/rank-00001.safetensors" <<'END'
import sys
with open(sys.argv[1], "r+b") as file:
    content = file.read()
    middle = len(content) * 3 // 4
    file.seek(middle)
    file.write(bytes([content[middle] ^ 4]))
END
  title "the older one is served, to both ranks, and training goes on from it"
  start_job after "A B" "${stored[@]}"
  wait_for "the job to train again" has_begun
  for rank in 0 1; do
    expect "rank $rank" "\"event\":\"restored\",\"step\":$((10#${older##*step-}))," \
      "$(report_of $rank)"
  done
  expect "B says what is wrong" "rank=1 on storage is not used: corruption" "$(log_of B)"
  train_to_the_end
}

case_hung_writer() {
  local stored=(--dir "$scratch/storage" --save-storage-interval 20) first newer
  open_cluster
  steps=2500
  export LIBCKPT_FLUSH_STALLED_AFTER=2s
  title "the daemon of node B stops in mid-flush: node A, which has the copy, writes the part of B"
  ( on B env LIBCKPT_POINTS=flush.write.first=stop "$bin/ckptd" ) >"$scratch/ckptd.txt" 2>&1 &
  wait_for "the daemon of B" has_daemon B
  start_job hung "A B" "${stored[@]}" --step-ms 10
  # The part of the step at which B stopped, or of the next one where the copy of that step did not
  # come whole: then the step is given up, and B counts as silent for the next.
  wait_for "node A to write the part" has_line "step=[0-9]+ saved as .*ranks=2" "$(log_of A)"
  say "$(grep -hE -m 1 "rank=1 is written by node A now|step=[0-9]+ flush given up" "$(log_of A)" |
    cut -c1-160)"
  first=$(sed -n 's/.*step=\([0-9]*\) saved as.*/\1/p' "$(log_of A)" | head -n 1)
  say "saved: step $first"
  title "it wakes up, and goes on where it stopped: it harms nothing, and the next steps are stored"
  kill -CONT "$(node_daemon B)" || die "the daemon of B is gone"
  newer=$((first + 40))
  wait_for "the next checkpoints" has_reached durable "$newer"
  train_to_the_end
  "$bin/ckpt" verify "$scratch/storage" >"$scratch/verified.txt" ||
    die "$(cat "$scratch/verified.txt")"
  say "verified: $(tail -n 1 "$scratch/verified.txt")"
  if ls "$scratch"/storage/step-* | grep -E '\.t[0-9]+$'; then
    die "files of several writers lie in a checkpoint"
  fi
}

scratch=$(mktemp -d "${TMPDIR:-/tmp}/cluster.XXXXXX")
trap finish EXIT
trap 'exit 130' INT TERM
"case_$case"
