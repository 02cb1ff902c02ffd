#!/usr/bin/env bash
# Goal:   the bundle runs on a machine that has glibc and nothing else of what it needs.
# Method: tests/package/bundle.sh BUILD makes the bundle of BUILD, unpacks it into an empty
#         directory and asks the loader of each file where its libraries come from; then its
#         programs run with an empty environment, and a trainer is built against it.
set -u
cd "$(dirname "$0")/../.."
. tests/packages.sh
build=${1:-build/dev}
mib_max=40
subject="bundle: "
. tests/package/check.sh

is_small() {
  local mib
  mib=$(du -m "$build"/libckpt-*.tar.gz | cut -f 1)
  echo "$mib MiB"
  [ "$mib" -lt "$mib_max" ]
}
unpack() {
  mkdir "$scratch/unpacked" && tar -C "$scratch/unpacked" -xzf "$build"/libckpt-*.tar.gz
}
# Each library comes from the bundle, but those of glibc: of what is started, or loaded by others.
# Libraries that those load in turn are there by then. The runtime of C++ is the bundle's for its
# programs, and the machine's for what trainers load: one may be older than the other libraries of
# a trainer want.
is_closed() {
  local file foreign runtime='libstdc\+\+|libgcc_s'
  for file in "$root"/bin/* "$root"/lib*/libckpt.so "$root"/python/libckpt/_native*.so; do
    [ -e "$file" ] || continue
    [ "$(head -c 4 "$file" | tr -d '\0')" = $'\x7fELF' ] || continue
    foreign=$(env -i /usr/bin/ldd "$file" | grep '=> ' | grep -v "=> $root/" |
      grep -vE '^\s*(libc|libm|libpthread|libdl|librt|libresolv|libutil|libanl)\.so')
    case "$file" in
      "$root"/bin/*) ;;
      *) foreign=$(grep -vE "^\s*($runtime)\.so" <<<"$foreign")
        ldd "$file" | grep -E "($runtime)\.so" | grep "$root/" && return 1 ;;
    esac
    [ -z "$foreign" ] || { echo "$file: $foreign"; return 1; }
  done
}
trainings_are_whole() {
  local name names
  names=$(sed -nE 's/^ *(import|from) (\w+).*/\2/p' "$root"/tests/*.py | sort -u)
  for name in $names; do
    [ -e tests/python/trainers/"$name".py ] || [ -e tests/gpu/"$name".py ] || continue
    [ -e "$root/tests/$name.py" ] || { echo "tests/$name.py is missing"; return 1; }
  done
}
runs() {
  env -i "$root/bin/ckpt" --version && env -i "$root/bin/ckptd" --help &&
    env -i HOME="$scratch" LIBCKPT_RUNTIME_DIR="$scratch/run" "$root/bin/ckpt" doctor --json
}
trainer_runs() {
  g++ -std=c++20 -I"$root/include" examples/minimal_trainer.cpp -o "$scratch/trainer" \
    -L"$root/lib" -lckpt -Wl,-rpath,"$root/lib" -Wl,--allow-shlib-undefined &&
    env -i LIBCKPT_RUNTIME_DIR="$scratch/run" "$scratch/trainer" &&
    env -i LIBCKPT_RUNTIME_DIR="$scratch/run" "$root/bin/ckpt" stop
}

# A bundle builds its Python extension with this; where it cannot be had, there is none in it.
find_python() {
  local environment=$build/bundle_venv
  [ -x "$environment/bin/python" ] || /usr/bin/python3 -m venv "$environment" || return 1
  "$environment/bin/python" -m nanobind --version ||
    "$environment/bin/python" -m pip install --quiet 'nanobind>=3.1,<4' || return 1
  CKPT_BUNDLE_PYTHON=$(realpath -s "$environment")/bin/python
  export CKPT_BUNDLE_PYTHON
}
# By the machine's own Python, which has no package at all: two lives, the second goes on.
python_runs() {
  local life
  for life in 1 2; do
    env -i PATH=/usr/bin:/bin HOME="$scratch" LIBCKPT_RUNTIME_DIR="$scratch/run" \
      PYTHONPATH="$root/python" /usr/bin/python3 tests/package/bundle_trainer.py \
      "$root" "$scratch/checkpoints" "$life" || return 1
  done
  env -i LIBCKPT_RUNTIME_DIR="$scratch/run" "$root/bin/ckpt" stop
}

has_python=""
if find_python >"$scratch/log" 2>&1; then
  has_python=yes
else
  echo "skipped package: bundle: the Python extension, since nanobind cannot be installed here"
fi
check "it is made" "$cmake" --build "$build" --target bundle
check "it is smaller than $mib_max MiB" is_small
check "it unpacks into an empty directory" unpack
root=$(echo "$scratch"/unpacked/libckpt-*)
check "it brings its libraries" is_closed
check "its trainings have all of the suite that they import" trainings_are_whole
check "its programs run with an empty environment" runs
check "a trainer runs with its library and its daemon" trainer_runs
[ -z "$has_python" ] || check "its Python package runs with nothing else" python_runs
gpu_says() {
  local said
  said=$(env -i PATH=/usr/bin:/bin "$root/gpu.sh" --results "$scratch/nothing") ||
    { echo "$said"; return 1; }
  echo "$said"
  tail -n 1 <<<"$said" | grep -qE '^[0-9]+ passed, 0 failed, [0-9]+ skipped$'
}
check "its GPU suite and benchmark run, or say what is skipped" gpu_says
# On the stand-in driver, where the build has it: what a machine with a GPU would run, in a root
# that has nothing but what every Linux has. Its rates mean nothing.
in_small_root() {
  bash tests/package/small_root.sh "$scratch/unpacked" CKPT_CUDA_DRIVER=/here/stand_in.so \
    CKPT_NCCL_LIBRARY=/here/nccl_stand_in.so "$@"
}
figures() { wc -l <"$scratch/unpacked/$1/figures.jsonl"; }
gpu_runs_whole() {
  in_small_root "/here/$(basename "$root")/gpu.sh" both --results /here/whole --budget 900 \
    --pairs 1 --size 16 --force || true
  # Floors are not met by a driver that has no rates: what counts is that each part came to its
  # end.
  ! grep -E 'FAILED.*(hung|exit code)|skipped .*budget' \
    "$scratch/unpacked/whole/summary.txt" &&
    [ "$(figures whole)" -ge 40 ] &&
    grep -qE '^G12 .*measured' "$scratch/unpacked/whole/summary.txt" &&
    grep -qE '^G14 ' "$scratch/unpacked/whole/summary.txt"
}
# The process dies in a copy: what was measured before, and all other parts, are there. It runs
# beside gpu_runs_whole, since both wait a lot.
gpu_dies() {
  in_small_root CKPT_CUDA_STAND_IN=kill_copy=4000 "/here/$(basename "$root")/gpu.sh" bench \
    --results /here/dies --budget 900 --pairs 1 --size 4 --force
}
gpu_loses_nothing() {
  local status
  wait "$dying"
  status=$?
  cat "$scratch/dying.log"
  [ "$status" -eq 1 ] && grep -q 'FAILED .* killed' "$scratch/unpacked/dies/summary.txt" &&
    [ "$(figures dies)" -ge 5 ]
}
gpu_keeps_its_budget() {
  local began=$SECONDS
  in_small_root "/here/$(basename "$root")/gpu.sh" bench --results /here/short --budget 8 \
    --pairs 1 --size 4 --force
  [ $((SECONDS - began)) -lt 40 ] &&
    grep -q 'skipped .*the budget of 8 s is spent' "$scratch/unpacked/short/summary.txt"
}
stand_in=$(realpath -m "$build/tests/capture/libcuda_stand_in.so")
if [ -e "$stand_in" ] && [ -x "$root/bin/ckpt_gpu" ]; then
  check "its GPU suite runs test by test" \
    env -i PATH=/usr/bin:/bin CKPT_CUDA_DRIVER="$stand_in" "$root/gpu.sh" suite \
    --results "$scratch/suite"
  cp "$stand_in" "$scratch/unpacked/stand_in.so"
  cp "$(dirname "$stand_in")/libnccl_stand_in.so" "$scratch/unpacked/nccl_stand_in.so"
  in_small_root bash -c true
  if [ $? -eq 77 ]; then
    echo "skipped package: bundle: the GPU programs in a small root, which is not allowed here"
  else
    gpu_dies >"$scratch/dying.log" 2>&1 &
    dying=$!
    check "its GPU programs need no more than a small root has" gpu_runs_whole
    check "a GPU program that dies loses nothing that came before" gpu_loses_nothing
    check "the budget of time is kept" gpu_keeps_its_budget
  fi
fi
exit $status
