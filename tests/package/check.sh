# The package tests share a folder of their own, and one line per claim. Sourced from the tree's
# root, with the claims' first word in `subject`; a failure leaves `status` at 1.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
status=0

check() {  # check NAME COMMAND...
  local name=$1
  shift
  if "$@" >"$scratch/log" 2>&1; then
    echo "ok package: $subject$name"
  else
    echo "FAILED package: $subject$name"
    tail -n 30 "$scratch/log"
    status=1
  fi
}
