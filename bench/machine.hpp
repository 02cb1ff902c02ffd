// Machine: describes the machine, and detects whether others use it at the same time.
#pragma once

#include <chrono>
#include <string>

namespace bench {

// "2 cores, 24 GiB, Intel(R) Xeon(R) ..., Linux 6.1": no names of hosts.
std::string machine_in_words();

// The number of cores in use, measured over one second, in which it sleeps. The load average would
// include the previous bench.
double busy_cores();

// Others: the number of cores that others have used since its construction: processes that do not
// descend from this one, and other guests of the host. Kernel threads do not count, since they work
// for us as well.
class Others {
 public:
  Others();
  double cores() const;

 private:
  std::chrono::steady_clock::time_point begin_;
  double seconds_;
};

// The type of the file system of `directory`: "ext4", "xfs", "tmpfs", ...
std::string file_system_of(const std::string& directory);

}  // namespace bench
