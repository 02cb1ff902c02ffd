// Machine: what a benchmark ran on, in words, and whether others used it at the same time.
#pragma once

#include <chrono>
#include <string>

namespace bench {

// "2 cores, 24 GiB, Intel(R) Xeon(R) ..., Linux 6.1": no names of hosts.
std::string machine_in_words();

// How many cores were in use during the last second; it takes that second, and sleeps in it. The
// load average would count the bench before this one.
double busy_cores();

// Others: how many cores others used since this was made: processes that do not descend from this
// one, and other guests of the host. Threads of the kernel work for us as well, and do not count.
class Others {
 public:
  Others();
  double cores() const;

 private:
  std::chrono::steady_clock::time_point begin_;
  double seconds_;
};

// "ext4", "xfs", "tmpfs", ... of the file system that `directory` is on.
std::string file_system_of(const std::string& directory);

}  // namespace bench
