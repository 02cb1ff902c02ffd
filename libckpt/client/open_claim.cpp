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
struct OpenClaim::Place {
  std::string engine, job;
  std::uint32_t rank = 0;
  std::atomic<pid_t> process{0};  // 0: nobody.
  Place* next = nullptr;

  static Place& find_or_add(std::string_view engine, std::string_view job, std::uint32_t rank);
};

OpenClaim::Place& OpenClaim::Place::find_or_add(std::string_view engine, std::string_view job,
                                                std::uint32_t rank) {
  static std::atomic<Place*> newest{nullptr};
  Place* mine = nullptr;
  Place* first = newest.load();
  while (true) {
    for (Place* place = first; place != nullptr; place = place->next) {
      if (place->rank != rank || place->job != job || place->engine != engine) continue;
      delete mine;
      return *place;
    }
    if (mine == nullptr) mine = new Place{std::string(engine), std::string(job), rank};
    mine->next = first;
    if (newest.compare_exchange_weak(first, mine)) return *mine;
  }
}

Result<OpenClaim> OpenClaim::take(std::string_view engine, std::string_view job,
                                  std::uint32_t rank) {
  Place& place = Place::find_or_add(engine, job, rank);
  const pid_t self = ::getpid();
  pid_t holder = place.process.load();
  while (holder != self) {
    if (place.process.compare_exchange_weak(holder, self)) return OpenClaim(place, self);
  }
  return fail(
      Errc::invalid_argument,
      fmt::format("rank {} of job {}: this process has it open already: close that one first", rank,
                  job));
}

OpenClaim::OpenClaim(OpenClaim&& other) noexcept
    : place_(std::exchange(other.place_, nullptr)), process_(other.process_) {}

OpenClaim::~OpenClaim() {
  pid_t holder = process_;
  if (place_ != nullptr) place_->process.compare_exchange_strong(holder, 0);
}

}  // namespace ckpt::client
