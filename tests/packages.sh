# Debian packages that libckpt needs, in one place; sourced by tests/run.sh, bench/run.sh and
# examples/quickstart.sh, which call need_packages LIST... before anything else.

packages_build="g++ cmake ninja-build ccache pkg-config libboost1.81-dev liburing-dev libisal-dev
  libxxhash-dev libzstd-dev libfmt-dev libssl-dev libcurl4-openssl-dev nlohmann-json3-dev
  libcli11-dev"
packages_test="catch2 e2fsprogs xfsprogs iproute2 nftables python3 clang-format-19"
packages_python="python3-venv"
packages_clang="clang-19 libclang-rt-19-dev llvm-19"
packages_deep="clang-tidy-19"
packages_bench="fio iperf3 iproute2 util-linux"

# Newer tools may stand first on the path; the tree is built with Debian's own.
export PATH=/usr/bin:$PATH
cmake=/usr/bin/cmake
ctest=/usr/bin/ctest
python=/usr/bin/python3

# need_packages PACKAGE...: installs what is missing; without root, prints the line that would.
need_packages() {
  local package missing=""
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
      missing="$missing $package"
  done
  [ -z "$missing" ] && return 0
  if [ "$(id -u)" -ne 0 ]; then
    echo "Missing packages. Run this, then start again:" >&2
    echo "  sudo apt-get install -y --no-install-recommends$missing" >&2
    return 1
  fi
  echo "installing:$missing"
  export DEBIAN_FRONTEND=noninteractive
  if ! apt-get install -qq -y --no-install-recommends $missing >/dev/null 2>&1; then
    # The lists may be empty or old.
    apt-get update -qq >/dev/null || return 1
    apt-get install -qq -y --no-install-recommends $missing >/dev/null || return 1
  fi
}
