# nodes: the machines of a small cluster for scripts that source this file: network namespaces where
# they are allowed, else loopback addresses of this machine.
#
#   nodes_open SCRATCH [plain]     then: node_add NAME..., on NAME COMMAND..., node_daemon NAME,
#   node_lose NAME                 the machine is gone: no packet, no process, no memory
#   nodes_close                    ends all there is, and says what was left behind, if anything
#
# Each node has a directory SCRATCH/NAME for its daemon, and an address ${node_address[NAME]}.

declare -A node_address=()
nodes_scratch=""
nodes_prefix=""  # For the names of the namespaces; empty: loopback addresses.
nodes_port=7711
nodes_count=0

nodes_open() {  # nodes_open SCRATCH [plain]
  nodes_scratch=$1
  if [ "${2:-}" != plain ] && make_switch "cq$$"; then
    nodes_prefix=cq$$
    return
  fi
  # Other jobs of this machine may use the same addresses: take ports that nobody listens on.
  nodes_port=$((20000 + $$ % 20000))
  while is_port_taken "$nodes_port" || is_port_taken $((nodes_port + 1)); do
    nodes_port=$((nodes_port + 2))
  done
}
is_port_taken() {
  grep -qiE ":$(printf '%04X' "$1") 0+:0000 0A" /proc/net/tcp
}

# A namespace of its own holds the bridge, so that this machine's own network is left as it is.
make_switch() {  # make_switch PREFIX
  [ "$(id -u)" -eq 0 ] && command -v ip >/dev/null || return 1
  ip netns add "$1-net" 2>/dev/null || return 1
  if ip netns exec "$1-net" true 2>/dev/null &&
    ip -n "$1-net" link add switch type bridge 2>/dev/null &&
    ip -n "$1-net" link set switch up; then
    return 0
  fi
  ip netns del "$1-net"
  return 1
}

node_add() {  # node_add NAME...
  local name space
  for name in "$@"; do
    nodes_count=$((nodes_count + 1))
    mkdir -m 700 "$nodes_scratch/$name"
    if [ -z "$nodes_prefix" ]; then
      node_address[$name]=127.0.0.$((nodes_count + 1))
      continue
    fi
    space=$nodes_prefix-$name
    node_address[$name]=10.77.0.$((nodes_count + 1))
    ip netns add "$space" &&
      ip -n "$space" link set lo up &&
      ip -n "$space" link add eth0 type veth peer name "port-$name" netns "$nodes_prefix-net" &&
      ip -n "$nodes_prefix-net" link set "port-$name" master switch up &&
      ip -n "$space" addr add "${node_address[$name]}/24" dev eth0 &&
      ip -n "$space" link set eth0 up || return 1
  done
}

on() {  # on NAME COMMAND...: replaces this shell; use it in ( ) or with &
  local name=$1
  shift
  export LIBCKPT_RUNTIME_DIR=$nodes_scratch/$name
  [ -z "$nodes_prefix" ] || exec ip netns exec "$nodes_prefix-$name" "$@"
  exec "$@"
}

node_daemon() {  # node_daemon NAME: the pid of its daemon; fails when none runs
  local pid
  pid=$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' "$nodes_scratch/$1/ckptd.json" 2>/dev/null)
  [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null && echo "$pid"
}

# All processes of one node, or of all: those that have its directory in their environment.
node_processes() {  # node_processes [NAME]
  local name
  for name in ${1:-${!node_address[@]}}; do
    grep -lzxF "LIBCKPT_RUNTIME_DIR=$nodes_scratch/$name" /proc/[0-9]*/environ 2>/dev/null |
      sed 's,/proc/\([0-9]*\)/environ,\1,'
  done
}

node_lose() {  # node_lose NAME
  # First the cable: nobody hears that the processes died.
  [ -z "$nodes_prefix" ] || ip -n "$nodes_prefix-net" link del "port-$1"
  kill_and_wait KILL $(node_processes "$1")
  [ -z "$nodes_prefix" ] || ip netns del "$nodes_prefix-$1"
  rm -rf "${nodes_scratch:?}/$1"
  unset "node_address[$1]"
}

kill_and_wait() {  # kill_and_wait SIGNAL PID...: at most ten seconds
  local signal=$1 pid left tries
  shift
  [ $# -eq 0 ] && return 0
  {
    kill "-$signal" "$@"
    for ((tries = 0; tries < 200; ++tries)); do
      left=""
      for pid in "$@"; do
        # A zombie, which its parent has not asked for yet, is gone for our purpose.
        grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$pid/status" && left="$left $pid"
      done
      if [ -z "$left" ]; then
        for pid in "$@"; do wait "$pid"; done  # The shell would report ours later.
        return 0
      fi
      sleep 0.05
    done
  } 2>/dev/null  # The shell would report each.
  return 1
}

# Prints what is left; nothing and 0 when all is gone. Files are the caller's.
nodes_close() {
  local name daemons left=""
  [ -n "$nodes_scratch" ] || return 0  # None were opened.
  daemons=$(for name in "${!node_address[@]}"; do node_daemon "$name"; done)
  # Trainers first: they would start their daemon again.
  kill_and_wait KILL $(node_processes | grep -vxF "$daemons")
  # Memory that is counted belongs to a process or a descriptor; these are the daemons' segments.
  local memory
  memory=$(segments_of $daemons)
  kill_and_wait TERM $daemons
  kill_and_wait KILL $(node_processes) || left="processes: $(node_processes | tr '\n' ' ')"
  if [ -n "$nodes_prefix" ]; then
    for name in $(ip netns list | sed -n "s/^\($nodes_prefix-[A-Za-z0-9]*\).*/\1/p"); do
      ip netns del "$name" || left="$left namespace $name"
    done
  fi
  grep -qF "$nodes_scratch/" /proc/net/unix && left="$left a socket below $nodes_scratch"
  [ -n "$memory" ] && segments_of $(ls /proc | grep -x '[0-9]*') | grep -qxF "$memory" &&
    left="$left memory of the daemons"
  [ -z "$left" ] && return 0
  echo "$left"
  return 1
}

segments_of() {  # segments_of PID...: the inodes of the Slots that they hold
  [ $# -eq 0 ] || find "${@/#//proc/}" -maxdepth 2 -path '*/fd/*' -lname '*memfd:ckpt-slot*' \
    -print0 2>/dev/null | xargs -0 -r stat -L -c %i 2>/dev/null | sort -u
}
