# job: a training job of two ranks on the nodes of nodes.sh, for scripts that source both files.
#
#   start_job PHASE NODE_OF_RANK_0 NODE_OF_RANK_1 OPTION...      then, with a deadline each:
#   wait_for WHAT CONDITION...      end_ranks SIGNAL RANK...      check_end
#
# The caller sets: bin (where the programs are), scratch (a directory), width and steps.
# A phase is one life of the trainers; its files are $scratch/PHASE.rankN.{txt,jsonl,weights}.

declare -A trainer=()    # Pid, by rank, of those that run.
declare -A node_of=()    # By rank.
declare -A secret_of=()  # The file of the shared secret, by rank; empty: none.
phase=""
nodes_list=""
incarnation=0  # Of the list of nodes: each phase may have another.
deadline_seconds=60

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

# wait_for WHAT CONDITION...: until it holds. A trainer that ends before has failed, unless their
# end is what is waited for. A machine with much else to do may train slowly, as long as it trains.
wait_for() {
  local what=$1 give_up=$((SECONDS + deadline_seconds)) told=$SECONDS rank step seen=""
  shift
  until "$@"; do
    for rank in "${!trainer[@]}"; do
      is_alive "${trainer[$rank]}" || [ "$1" = have_ended ] || "$@" ||
        die "waiting for $what: rank $rank has ended"
    done
    [ "$SECONDS" -lt "$give_up" ] || die "waiting for $what: nothing for $deadline_seconds s"
    if [ "$SECONDS" -ge $((told + 2)) ]; then
      told=$SECONDS
      step=$(last 0 step)
      [ "$step" = "$seen" ] || give_up=$((SECONDS + deadline_seconds))
      seen=$step
      say "... step $step of $steps, waiting for $what"
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

make_secret() {  # make_secret FILE
  (umask 077 && head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n' >"$1")
}
start_rank() {  # start_rank RANK OPTION...: on its node, in the background
  local rank=$1 node=${node_of[$1]}
  shift
  [ -z "${secret_of[$rank]:-}" ] || set -- --secret-file "${secret_of[$rank]}" "$@"
  ( on "$node" "$bin/ckpt_example_trainer" --job quickstart --rank "$rank" --world 2 \
    --width "$width" --layers 4 --steps "$steps" --daemon "$bin/ckptd" --node "$node" \
    --nodes "$nodes_list" --incarnation "$incarnation" \
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
end_ranks() {  # end_ranks SIGNAL RANK...
  local rank signal=$1
  shift
  for rank in "$@"; do
    kill_and_wait "$signal" "${trainer[$rank]}" || die "rank $rank does not end"
    wait "${trainer[$rank]}" 2>/dev/null
    unset "trainer[$rank]"
  done
}
check_end() {  # Both trainers have ended: well?
  local rank
  for rank in 0 1; do
    wait "${trainer[$rank]}" || die "rank $rank ended with code $?"
    unset "trainer[$rank]"
    say "$(grep 'done at' "$scratch/$phase.rank$rank.txt")"
  done
}
