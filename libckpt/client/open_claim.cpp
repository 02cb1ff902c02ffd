#include "client/open_claim.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <utility>

namespace ckpt::client {

// One for each engine, job and rank that this process ever opened: they are few, and are kept. The
// list has no lock, which a fork could leave locked for good. The pid shows a fork that the claim
// is its parent's.
struct OpenClaim::Entry {
  std::string engine, job;
  std::uint32_t rank = 0;
  std::atomic<pid_t> process{0};  // 0: nobody.
  Entry* next = nullptr;

  static Entry& find_or_add(std::string_view engine, std::string_view job, std::uint32_t rank);
};

OpenClaim::Entry& OpenClaim::Entry::find_or_add(std::string_view engine, std::string_view job,
                                                std::uint32_t rank) {
  static std::atomic<Entry*> newest{nullptr};
  Entry* mine = nullptr;
  Entry* first = newest.load();
  while (true) {
    for (Entry* entry = first; entry != nullptr; entry = entry->next) {
      if (entry->rank != rank || entry->job != job || entry->engine != engine) continue;
      delete mine;
      return *entry;
    }
    if (mine == nullptr) mine = new Entry{std::string(engine), std::string(job), rank};
    mine->next = first;
    if (newest.compare_exchange_weak(first, mine)) return *mine;
  }
}

Result<OpenClaim> OpenClaim::take(std::string_view engine, std::string_view job,
                                  std::uint32_t rank) {
  Entry& entry = Entry::find_or_add(engine, job, rank);
  const pid_t self = ::getpid();
  pid_t holder = entry.process.load();
  while (holder != self) {
    if (entry.process.compare_exchange_weak(holder, self)) return OpenClaim(entry, self);
  }
  return fail(
      Errc::invalid_argument,
      fmt::format("rank {} of job {}: this process has it open already: close that one first", rank,
                  job));
}

OpenClaim::OpenClaim(OpenClaim&& other) noexcept
    : entry_(std::exchange(other.entry_, nullptr)), process_(other.process_) {}

OpenClaim::~OpenClaim() {
  pid_t holder = process_;
  if (entry_ != nullptr) entry_->process.compare_exchange_strong(holder, 0);
}

}  // namespace ckpt::client
