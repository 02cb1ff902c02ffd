// Goal:   the memory that we may use is the least of what the machine and every cgroup above say.
// Method: small trees of /proc and /sys, as cgroup versions 1 and 2 and containers show them.
#include "os/memory_available.hpp"

#include <catch2/catch.hpp>
#include <fstream>

#include "base/units.hpp"
#include "support/temporary_directory.hpp"

namespace ckpt::test {
namespace {

struct Machine {
  Machine() {
    put("/proc/meminfo", "MemTotal:       8388608 kB\nMemFree: 1 kB\nMemAvailable:   4194304 kB\n");
  }
  void put(const std::string& path, const std::string& text) const {
    const std::string whole = directory.path().string() + path;
    std::filesystem::create_directories(std::filesystem::path(whole).parent_path());
    std::ofstream(whole) << text;
  }
  os::MemoryAvailable available() const {
    auto memory = os::memory_available(directory.path().string());
    REQUIRE(memory);
    return *memory;
  }
  TemporaryDirectory directory;
};

TEST_CASE("memory available: without cgroups the machine decides", "[unit][os]") {
  const Machine machine;
  const auto memory = machine.available();
  CHECK(memory.bytes == 4 * GiB);
  CHECK(memory.machine_bytes_total == 8 * GiB);
  CHECK(memory.cgroup_bytes == UINT64_MAX);
}

TEST_CASE("memory available: the tightest ancestor of version 2 counts, without its cache",
          "[unit][os]") {
  const Machine machine;
  machine.put("/proc/self/cgroup", "0::/job/rank\n");
  machine.put("/sys/fs/cgroup/job/rank/memory.max", "max\n");
  machine.put("/sys/fs/cgroup/job/rank/memory.current", "1000\n");
  machine.put("/sys/fs/cgroup/job/memory.max", std::to_string(2 * GiB));
  machine.put("/sys/fs/cgroup/job/memory.current", std::to_string(1 * GiB));
  CHECK(machine.available().bytes == 1 * GiB);
  machine.put("/sys/fs/cgroup/job/memory.stat",
              "anon 5\ninactive_file " + std::to_string(512 * MiB) + "\nactive_file 7\n");
  CHECK(machine.available().bytes == 1 * GiB + 512 * MiB);
  machine.put("/sys/fs/cgroup/job/rank/memory.max", "1500\n");
  CHECK(machine.available().cgroup_bytes == 500);
  machine.put("/sys/fs/cgroup/job/rank/memory.current", "2000\n");
  CHECK(machine.available().bytes == 0);
  // An inner group with more room than the outer one.
  machine.put("/sys/fs/cgroup/job/rank/memory.max", std::to_string(3 * GiB));
  CHECK(machine.available().bytes == 1 * GiB + 512 * MiB);
}

TEST_CASE("memory available: version 1 has its own files and its own word for none", "[unit][os]") {
  const Machine machine;
  machine.put("/proc/self/cgroup", "11:cpu,cpuacct:/a\n9:memory:/docker/abc\n");
  machine.put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  machine.put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n");
  CHECK(machine.available().cgroup_bytes == UINT64_MAX);
  // In a container the path is not visible: its own group is the mount.
  machine.put("/sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(3 * GiB));
  machine.put("/sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(1 * GiB));
  machine.put("/sys/fs/cgroup/memory/memory.stat",
              "inactive_file 9\ntotal_inactive_file " + std::to_string(256 * MiB) + "\n");
  CHECK(machine.available().bytes == 2 * GiB + 256 * MiB);
}

TEST_CASE("memory available: this machine answers, and an empty one is unsupported", "[unit][os]") {
  const auto here = os::memory_available();
  REQUIRE(here);
  CHECK(here->bytes > 0);
  CHECK(here->bytes <= here->machine_bytes_total);
  const TemporaryDirectory empty;
  const auto nothing = os::memory_available(empty.path().string());
  REQUIRE(!nothing);
  CHECK(nothing.error().code() == Errc::unsupported);
}

}  // namespace
}  // namespace ckpt::test
