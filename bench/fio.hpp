// fio: the rate of the disk for a program that does nothing else.
#pragma once

#include <cstdint>
#include <string>

namespace bench {

struct FioJob {
  std::string path;
  std::uint64_t bytes = 0;
  std::uint64_t block_bytes = 0;
  std::size_t depth = 0;
  bool is_write = false;  // Then of a new file, allocated first, and synced at the end.
};

// io_uring and O_DIRECT. Bytes per second, without fio's own start.
double fio_rate(const FioJob& job);

}  // namespace bench
