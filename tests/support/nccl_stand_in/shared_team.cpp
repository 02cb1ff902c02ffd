#include "support/nccl_stand_in/shared_team.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace ckpt::test {

namespace {

// A stand-in that has no memory left cannot go on, and nobody tests that.
void must(bool is_so, const char* what) {
  if (is_so) return;
  std::perror(what);
  std::abort();
}

}  // namespace

std::string SharedTeam::make() {
  const int file = ::memfd_create("nccl_stand_in", MFD_CLOEXEC);
  must(file >= 0, "make a team");
  must(::ftruncate(file, sizeof(Shared)) == 0, "make a team");
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file);
}

std::unique_ptr<SharedTeam> SharedTeam::open(const std::string& words) {
  const int file = ::open(words.c_str(), O_RDWR | O_CLOEXEC);
  struct stat status{};
  if (file < 0) return nullptr;
  must(::fstat(file, &status) == 0 && status.st_size >= static_cast<off_t>(sizeof(Shared)),
       "open a team");
  void* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  must(memory != MAP_FAILED, "map a team");
  return std::unique_ptr<SharedTeam>(new SharedTeam(file, static_cast<Shared*>(memory)));
}

SharedTeam::~SharedTeam() {
  ::munmap(shared_, sizeof(Shared));
  ::close(file_);
}

SharedTeam::Broadcast& SharedTeam::of(std::size_t number) {
  must(number < broadcasts_max, "so many broadcasts");
  return shared_->broadcasts[number];
}

std::optional<SharedTeam::Arrival> SharedTeam::arrive(std::size_t number, int root,
                                                      std::size_t bytes) {
  const std::uint64_t wanted = (static_cast<std::uint64_t>(root) + 1) << 48 | bytes;
  std::uint64_t call = 0;
  if (of(number).call.compare_exchange_strong(call, wanted)) return Arrival{true};
  if (call != wanted) return std::nullopt;
  return Arrival{false};
}

void SharedTeam::deliver(std::size_t number, const std::vector<std::byte>& content) {
  const std::uint64_t place = shared_->end.fetch_add(content.size());
  const auto written =
      ::pwrite(file_, content.data(), content.size(), static_cast<off_t>(sizeof(Shared) + place));
  must(written == static_cast<ssize_t>(content.size()), "send");
  of(number).place = place;
  of(number).is_delivered = true;
}

std::vector<std::byte> SharedTeam::delivered(std::size_t number, std::size_t bytes) {
  std::vector<std::byte> content(bytes);
  const auto read =
      ::pread(file_, content.data(), bytes, static_cast<off_t>(sizeof(Shared) + of(number).place));
  must(read == static_cast<ssize_t>(bytes), "receive");
  if (of(number).is_corrupt) content[bytes / 2] ^= std::byte{1};
  return content;
}

}  // namespace ckpt::test
