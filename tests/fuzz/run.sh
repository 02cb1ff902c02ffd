#!/usr/bin/env bash
# Goal:   no bytes make a parser crash, hang, take much memory, or accept what they do not say.
# Method: tests/fuzz/run.sh BUILD [SECONDS]: each fuzzer for so long (10 by default), from the
#         golden files and from inputs that once broke something (tests/fuzz/seeds/NAME/). Its
#         findings lie below BUILD/fuzz/found; keep each as a seed once it is mended.
set -u -o pipefail
cd "$(dirname "$0")/../.."
build=${1:?run.sh wants a build directory}
seconds=${2:-10}

# Each fuzzer starts from these.
golden() {
  case "$1" in
    root_fuzz) (cd tests/golden && echo v?.manifest.json v1.run.json v1.timelines.json) ;;
    part_fuzz) echo v2.part v3.part ;;
    record_fuzz) echo v2.shard_record ;;
    agreement_fuzz) (cd tests/golden && echo peer*.decree peer*.node_report peer*.start) ;;
    control_fuzz) (cd tests/golden && echo local*.control_messages) ;;
  esac
}

status=0
for source in tests/fuzz/*_fuzz.cpp; do
  name=$(basename "$source" .cpp)
  program=$build/fuzz/$name
  corpus=$build/fuzz/corpus/$name
  found=$build/fuzz/found/$name/
  mkdir -p "$corpus" "$found"
  for file in $(golden "$name"); do cp "tests/golden/$file" "$corpus/"; done
  [ -d "tests/fuzz/seeds/$name" ] && cp "tests/fuzz/seeds/$name/"* "$corpus/"
  # A fuzzer that starts from nothing finds nothing: that must be seen.
  if [ -z "$(ls "$corpus")" ]; then
    echo "FAILED fuzz $name: it has no inputs to start from"
    status=1
    continue
  fi
  # The reports of sanitizers come on its own output, not in files as those of daemons do.
  if ASAN_OPTIONS=symbolize=1 UBSAN_OPTIONS=print_stacktrace=1 \
    "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
    -print_final_stats=1 -artifact_prefix="$found" "$corpus" >"$build/fuzz/$name.log" 2>&1; then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/fuzz/$name.log")
    echo "ok fuzz $name: ${runs:-0} inputs"
  else
    tail -n 60 "$build/fuzz/$name.log"
    echo "FAILED fuzz $name"
    status=1
  fi
done
exit $status
