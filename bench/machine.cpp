#include "bench/machine.hpp"

#include <sys/statfs.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

namespace bench {

namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

// The sum over all cores, in ticks.
struct CoreTicks {
  double busy = 0;  // User, nice, system, interrupts and stolen; not idle, not waiting for a disk.
  double stolen = 0;
};

CoreTicks core_ticks() {
  std::ifstream file("/proc/stat");
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, hard = 0, soft = 0, stolen = 0;
  file >> name >> user >> nice >> system >> idle >> waiting >> hard >> soft >> stolen;
  return {user + nice + system + hard + soft + stolen, stolen};
}

double ticks_per_second() {
  return static_cast<double>(::sysconf(_SC_CLK_TCK));
}

constexpr unsigned long kernel_thread_flag = 0x00200000;  // Linux's PF_KTHREAD.

struct Usage {
  pid_t parent = 0;
  bool is_of_kernel = false;
  double ticks = 0;  // Its own, and those of all children that it waited for.
};

Usage usage_of(const std::filesystem::path& process) {
  std::ifstream file(process / "stat");
  std::string line;
  std::getline(file, line);
  const auto name_end = line.rfind(')');  // The name before may hold anything.
  if (name_end == std::string::npos) return {};
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  Usage usage;
  fields >> skipped >> usage.parent;
  for (int field = 5; field < 9; ++field) fields >> skipped;
  unsigned long flags = 0;
  fields >> flags;
  usage.is_of_kernel = (flags & kernel_thread_flag) != 0;
  for (int field = 10; field < 14; ++field) fields >> skipped;
  for (int field = 14; field < 18; ++field) {
    double ticks = 0;
    fields >> ticks;
    usage.ticks += ticks;
  }
  return usage;
}

// A process that ends adds its ticks to its parent's. So the sum over all live processes only
// grows, even while compilers come and go.
double seconds_of_others() {
  std::map<pid_t, Usage> all;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    all[static_cast<pid_t>(std::stol(name))] = usage_of(entry.path());
  }
  const auto is_other = [&](pid_t id) {
    while (id != ::getpid()) {
      const auto found = all.find(id);
      if (found == all.end()) return true;  // Above the first process there is none.
      id = found->second.parent;
    }
    return false;
  };
  double ticks = core_ticks().stolen;
  for (const auto& [id, usage] : all)
    if (!usage.is_of_kernel && is_other(id)) ticks += usage.ticks;
  return ticks / ticks_per_second();
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
  const double before = core_ticks().busy;
  const auto begin = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return (core_ticks().busy - before) / ticks_per_second() / took.count();
}

Others::Others() : begin_(std::chrono::steady_clock::now()), seconds_(seconds_of_others()) {}

double Others::cores() const {
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin_;
  return (seconds_of_others() - seconds_) / took.count();
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
