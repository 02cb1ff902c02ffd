#!/usr/bin/env bash
# Goal:   the functions that libckpt looks up in NCCL are there, in the library that wheels bring.
# Method: their names are read from the source, and looked for in the library's own table; it is not
#         loaded. The library is CKPT_NCCL_LIBRARY, python3's, or the loader's. Without one this is
#         skipped, and says so.
set -u
cd "$(dirname "$0")/../.."
source=libckpt/device/nccl_library.cpp
library=${CKPT_NCCL_LIBRARY:-}
if [ -z "$library" ]; then
  place=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0])' 2>/dev/null)
  library=${place:+$place/lib/libnccl.so.2}
fi
known() { /sbin/ldconfig -p 2>/dev/null | sed -n 's/.*libnccl\.so\.2 .*=> //p' | head -n 1; }
[ -n "$library" ] || library=$(known)
if [ ! -e "$library" ]; then
  echo "skipped: no libnccl.so.2 is here"
  exit 77
fi
names=$(grep -oE '"nccl[A-Z][A-Za-z]*"' "$source" | tr -d '"' | sort -u)
count=$(wc -w <<<"$names")
[ "$count" -ge 12 ] || { echo "FAILED: $source names only $count functions"; exit 1; }
exported=$(nm -D --defined-only "$library" | awk '$2 ~ /^[TW]$/ { sub("@.*", "", $3); print $3 }')
missing=$(comm -23 <(echo "$names") <(sort -u <<<"$exported"))
if [ -n "$missing" ]; then
  echo "FAILED: $library lacks" $missing
  exit 1
fi
echo "$library has all $count functions"
