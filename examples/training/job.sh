# job: a training job on nodes of nodes.sh, one rank on each, for scripts that source both files.
#
#   start_job PHASE "NODE_OF_RANK_0 NODE_OF_RANK_1..." OPTION...      then, with a deadline each:
#   wait_for WHAT CONDITION...      end_ranks SIGNAL RANK...      check_end
#
# The caller sets: bin (where the programs are), scratch (a directory), width and steps.
# A phase is one life of the trainers; its files are $scratch/PHASE.rankN.{txt,jsonl,weights}.

declare -A trainer=()    # Pid, by rank, of those that run.
declare -A node_of=()    # By rank.
declare -A secret_of=()  # The file of the shared secret, by node; empty: none.
phase=""
nodes_list=""
incarnation=0  # For the list of nodes: each phase may have another.
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
  sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p; t; s/.*\"$1\":\([^\",}]*\).*/\1/p" |
    grep -v '^null$'
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
  local rank
  for rank in "${!node_of[@]}"; do
    [ "$(last "$rank" "$1")" -ge "$2" ] || return 1
  done
}
has_begun() {
  has_reached step 1
}
have_ended() {
  local rank
  for rank in "${!trainer[@]}"; do
    ! is_alive "${trainer[$rank]}" || return 1
  done
}

make_secret() {  # make_secret FILE
  (umask 077 && head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n' >"$1")
}
start_rank() {  # start_rank RANK OPTION...: on its node, in the background
  local rank=$1 node=${node_of[$1]}
  shift
  [ -z "${secret_of[$node]:-}" ] || set -- --secret-file "${secret_of[$node]}" "$@"
  ( on "$node" "$bin/ckpt_example_trainer" --job quickstart --rank "$rank" \
    --world ${#node_of[@]} \
    --width "$width" --layers 4 --steps "$steps" --daemon "$bin/ckptd" --node "$node" \
    --nodes "$nodes_list" --incarnation "$incarnation" \
    --exchange "${node_address[${node_of[0]}]}:$((nodes_port + 1))" \
    --report "$(report_of "$rank")" --weights "$scratch/$phase.rank$rank.weights" "$@" ) \
    >"$scratch/$phase.rank$rank.txt" 2>&1 </dev/null &
  trainer[$rank]=$!
}
start_job() {  # start_job PHASE "NODE_OF_RANK_0 NODE_OF_RANK_1..." OPTION...
  local node rank=0
  phase=$1
  node_of=()
  nodes_list=""
  for node in $2; do
    node_of[$rank]=$node
    nodes_list="${nodes_list:+$nodes_list,}$node@${node_address[$node]}:$nodes_port"
    rank=$((rank + 1))
  done
  incarnation=$((incarnation + 1))
  shift 2
  for ((rank = 0; rank < ${#node_of[@]}; ++rank)); do
    start_rank "$rank" "$@"
  done
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
check_end() {  # All trainers have ended: well?
  local rank
  for ((rank = 0; rank < ${#node_of[@]}; ++rank)); do
    wait "${trainer[$rank]}" || die "rank $rank ended with code $?"
    unset "trainer[$rank]"
    say "$(grep 'done at' "$scratch/$phase.rank$rank.txt")"
  done
}
