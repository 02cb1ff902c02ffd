// SilentRequests: the requests that a server has not answered, or not well, while they are tried
// again. They may go on for a minute before they fail, and until then only this knows of them.
//
// Threads: any. Lifetime: shared by its owner and the requests, which may be destroyed last.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/clock.hpp"

namespace ckpt::bucket {

class SilentRequests {
 public:
  // Shorter trouble is an ordinary day.
  static constexpr Duration told_after = std::chrono::seconds(5);

  // Request: from its first try to its end.
  class Request {
   public:
    Request(std::shared_ptr<SilentRequests> all, Time began)
        : all_(std::move(all)), id_(all_->begin(began)) {}
    ~Request() { all_->end(id_); }
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    void note(std::string trouble) { all_->note(id_, std::move(trouble)); }

   private:
    const std::shared_ptr<SilentRequests> all_;
    const std::uint64_t id_;
  };

  // The one that has waited longest, and for how long; empty: none for long.
  std::string describe(Time now) const;

 private:
  struct State {
    Time began{};
    std::string trouble;  // Empty: none yet.
  };
  std::uint64_t begin(Time began);
  void note(std::uint64_t id, std::string trouble);
  void end(std::uint64_t id);

  mutable std::mutex mutex_;  // Only for these.
  std::uint64_t next_id_ = 0;
  std::map<std::uint64_t, State> requests_;  // The oldest first.
};

}  // namespace ckpt::bucket
