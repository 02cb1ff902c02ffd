#!/usr/bin/env bash
# Goal:   no bytes make a parser crash, hang, take much memory, or accept what they do not say.
# Method: tests/fuzz/run.sh BUILD [SECONDS]: each fuzzer for so long (30 by default), from the
#         golden files and from inputs that once broke something (tests/fuzz/seeds/NAME/). Its
#         findings lie below BUILD/fuzz/found; keep each as a seed once it is mended.
set -u -o pipefail
cd "$(dirname "$0")/../.."
build=${1:?run.sh wants a build directory}
seconds=${2:-30}

# Each fuzzer starts from these.
golden() {
  case "$1" in
    root_fuzz) (cd tests/golden && echo v?.manifest.json v1.run.json v1.timelines.json) ;;
    part_fuzz) echo v2.part v2.common.part v3.part ;;
    record_fuzz) echo v2.shard_record ;;
    agreement_fuzz) (cd tests/golden && echo peer*.decree peer*.node_report peer*.start) ;;
    control_fuzz) (cd tests/golden && echo local*.control_messages) ;;
  esac
}

fuzz() {  # fuzz NAME: one fuzzer, and its one line; 1: it found something.
  local name=$1 program=$build/fuzz/$1 corpus=$build/fuzz/corpus/$1 found=$build/fuzz/found/$1/
  local file runs
  mkdir -p "$corpus" "$found"
  for file in $(golden "$name"); do cp "tests/golden/$file" "$corpus/"; done
  [ -d "tests/fuzz/seeds/$name" ] && cp "tests/fuzz/seeds/$name/"* "$corpus/"
  # A fuzzer that starts from nothing finds nothing: that must be seen.
  if [ -z "$(ls "$corpus")" ]; then
    echo "FAILED fuzz $name: it has no inputs to start from"
    return 1
  fi
  # The reports of sanitizers come on its own output, not in files as those of daemons do.
  if ASAN_OPTIONS=symbolize=1 UBSAN_OPTIONS=print_stacktrace=1 \
    "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
    -print_final_stats=1 -artifact_prefix="$found" "$corpus" >"$build/fuzz/$name.log" 2>&1; then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/fuzz/$name.log")
    echo "ok fuzz $name: ${runs:-0} inputs"
  else
    echo "$(tail -n 60 "$build/fuzz/$name.log")"$'\n'"FAILED fuzz $name"
    return 1
  fi
}
export -f fuzz golden
export build seconds

# One on each core: xargs ends with 123 where one of them found something.
for source in tests/fuzz/*_fuzz.cpp; do basename "$source" .cpp; done |
  xargs -P "$(nproc)" -I {} bash -c 'fuzz "$1"' fuzz {}
