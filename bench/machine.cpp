#include "bench/machine.hpp"

#include <sys/statfs.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <thread>

namespace bench {

namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

// Of all cores together: user, nice, system, interrupts and what the host took; not idle, not
// waiting for a disk.
double busy_seconds() {
  std::ifstream file("/proc/stat");
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, hard = 0, soft = 0, stolen = 0;
  file >> name >> user >> nice >> system >> idle >> waiting >> hard >> soft >> stolen;
  return (user + nice + system + hard + soft + stolen) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

std::string machine_in_words() {
  struct sysinfo memory{};
  ::sysinfo(&memory);
  const double gibibytes =
      static_cast<double>(memory.totalram) * memory.mem_unit / static_cast<double>(1ULL << 30);
  utsname system{};
  ::uname(&system);
  return std::to_string(std::thread::hardware_concurrency()) + " cores, " +
         std::to_string(std::lround(gibibytes)) + " GiB, " + cpu_name() + ", " + system.sysname +
         " " + system.release;
}

double busy_cores() {
  const double before = busy_seconds();
  const auto begin = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return (busy_seconds() - before) / took.count();
}

std::string file_system_of(const std::string& directory) {
  struct statfs found{};
  if (::statfs(directory.c_str(), &found) != 0) return "unknown";
  static const std::map<long, std::string> names = {
      {0xef53, "ext4"},      {0x58465342, "xfs"}, {0x9123683e, "btrfs"},    {0x01021994, "tmpfs"},
      {0x858458f6, "ramfs"}, {0x6969, "nfs"},     {0x794c7630, "overlayfs"}};
  const auto name = names.find(static_cast<long>(found.f_type));
  return name != names.end() ? name->second : "another file system";
}

}  // namespace bench
