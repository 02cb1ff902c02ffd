// SlowDisk: a disk that is slow, full or hung, as a daemon sees it (slow_storage_bench.py).
//
// The daemon starts with this library before all others (LD_PRELOAD). It takes the places of the C
// library's writes and syncs of files, and refuses a ring, so that no write passes it by. The first
// letter of the file SLOW_DISK_MODE says what the disk is now: "n"ormal, "s"low (16 MB/s and 50 ms
// a sync), "f"ull, "h"ung (until it is something else).
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>

namespace {

constexpr long bytes_per_microsecond = 16;
constexpr long sync_microseconds = 50'000;
constexpr long poll_microseconds = 10'000;

void pause_for(long microseconds) {
  timespec left{microseconds / 1'000'000, microseconds % 1'000'000 * 1'000};
  while (::nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

char mode() {
  const char* path = std::getenv("SLOW_DISK_MODE");
  const int file = path != nullptr ? ::open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return 'n';
  char letter = 'n';
  if (::read(file, &letter, 1) != 1) letter = 'n';
  (void)::close(file);
  return letter;
}

// Returns false if there is no room.
bool wait_as_told(long microseconds) {
  char now = mode();
  for (; now == 'h'; now = mode()) pause_for(poll_microseconds);
  if (now == 's') pause_for(microseconds);
  if (now == 'f') errno = ENOSPC;
  return now != 'f';
}

template <class Function>
Function next_of(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED ssize_t pwrite(int file, const void* bytes, size_t count, off_t offset) {
  static const auto next = next_of<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  return wait_as_told(static_cast<long>(count) / bytes_per_microsecond)
             ? next(file, bytes, count, offset)
             : -1;
}

EXPORTED int fallocate(int file, int how, off_t offset, off_t bytes) {
  static const auto next = next_of<int (*)(int, int, off_t, off_t)>("fallocate");
  return wait_as_told(0) ? next(file, how, offset, bytes) : -1;
}

EXPORTED int fdatasync(int file) {
  static const auto next = next_of<int (*)(int)>("fdatasync");
  return wait_as_told(sync_microseconds) ? next(file) : -1;
}

EXPORTED int fsync(int file) {
  static const auto next = next_of<int (*)(int)>("fsync");
  return wait_as_told(sync_microseconds) ? next(file) : -1;
}

EXPORTED int io_uring_queue_init(unsigned, void*, unsigned) {
  return -EPERM;
}
