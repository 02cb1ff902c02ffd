// SilentRequests: the requests that a server has not answered, or not well, while they are tried
// again. They may go on for a minute before they fail, and until then only this knows of them. One
// that failed is remembered until the server answers any: the next try is no better news. It is
// forgotten after a while all the same, since perhaps nobody tries any more.
//
// Threads: any. Lifetime: shared by its owner and the requests, which may be destroyed last.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.hpp"

namespace ckpt::bucket {

class SilentRequests {
 public:
  // Shorter trouble is an ordinary day.
  static constexpr Duration told_after = std::chrono::seconds(5);
  // After its last trouble, whether or not anybody asks for it. Longer than a failed flush waits
  // before it is tried again. Where nothing is sent any more, nobody would hear that the server is
  // back.
  static constexpr Duration kept_for = std::chrono::seconds(90);

  // Request: from its first try to its end.
  class Request {
   public:
    // `place`: "s3://bucket/key".
    Request(std::shared_ptr<SilentRequests> all, std::string place, Time began)
        : all_(std::move(all)), id_(all_->begin(std::move(place), began)) {}
    ~Request() { all_->end(id_); }
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    void note(std::string trouble, Time now) { all_->note(id_, std::move(trouble), now); }
    void answered() { all_->answered(id_); }

   private:
    const std::shared_ptr<SilentRequests> all_;
    const std::uint64_t id_;
  };

  // Among those at `place` and below it, the one that has waited longest, or else the last one that
  // failed, and for how long the server has been silent; empty: none for long. Other jobs have
  // other places in the same bucket.
  std::string describe(std::string_view place, Time now);

 private:
  struct State {
    std::string place;
    Time began{};
    std::string trouble;  // Empty: none yet.
    Time noted{};         // When it had that.
  };
  std::uint64_t begin(std::string place, Time began);
  void note(std::uint64_t id, std::string trouble, Time now);
  void answered(std::uint64_t id);
  void end(std::uint64_t id);
  void forget_old(Time now);
  std::string in_words(const State& request, Time now) const;

  mutable std::mutex mutex_;  // Only for these.
  std::uint64_t next_id_ = 0;
  std::map<std::uint64_t, State> requests_;  // The oldest first.
  std::map<std::uint64_t, State> failed_;    // Since the last answer, the oldest first.
  std::optional<Time> silent_since_;         // The first of these began.
};

}  // namespace ckpt::bucket
