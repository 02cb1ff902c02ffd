// SaveAccount: the costs and results of saves: counters, one line per save, failures.
//
// Threads:   the training thread; `ended` on the thread that ended the capture. At most one
//            capture is between `started` and `collect`.
#pragma once

#include <atomic>
#include <chrono>
#include <ckpt/outcome.hpp>
#include <ckpt/result.hpp>
#include <ckpt/stats.hpp>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "client/link_view.hpp"
#include "snapshot/snapshotter.hpp"

namespace ckpt::client {

class SaveAccount {
 public:
  // `logged_job`: a line per save goes to the log (rank 0), under this name, since a process may
  // have several jobs that count their steps apart. Empty: none does.
  // Errors of captures name `who`.
  SaveAccount(std::string logged_job, std::string who)
      : logged_job_(std::move(logged_job)), who_(std::move(who)) {}

  // Measures the training thread inside save and guard.
  class HeldTime {
   public:
    explicit HeldTime(SaveAccount& account)
        : account_(account), since_(std::chrono::steady_clock::now()) {}
    HeldTime(const HeldTime&) = delete;
    HeldTime& operator=(const HeldTime&) = delete;
    ~HeldTime() { account_.held(std::chrono::steady_clock::now() - since_); }

   private:
    SaveAccount& account_;
    std::chrono::steady_clock::time_point since_;
  };

  bool has_saved() const { return due_count_ > 0; }  // Or was to, whatever came of it.
  void due(Step step);      // It is to be captured, and was not tried before.
  void restart();           // Steps that were due or started before count no more.
  void started(Step step);  // The newest due step.
  void skipped(SaveOutcome outcome);
  void failed(const Error& error);         // Counted, kept as the last error, logged once a minute.
  void failed_elsewhere(std::string why);  // The same, but its caller logs it.
  void not_saved(Step step, std::string why);
  void unavailable(const Error& error);  // Why a step was skipped: as `failed`, but not counted.
  void ended(const snapshot::Captured& captured);

  // Takes over the capture that has ended, if any. Returns its step if it failed.
  std::optional<Step> collect();
  void forget_ended() { has_ended_.store(false); }  // It was reported already.
  bool has_line() const { return line_.has_value(); }
  // Logs the line of the collected capture.
  void report(const LinkCounters& link);
  Stats stats(const LinkCounters& link) const;
  // Why the step was not captured; empty: it was, or is forgotten.
  std::string why_not_saved(Step step) const;

  // At the end of the session: logs a warning if the newest due steps are not saved.
  void warn_if_behind(const LinkCounters& link) const;
  // Errors: not_found (steps were due, and not one was captured).
  Status check_captured(const LinkCounters& link) const;
  // Of several ranks. Errors: not_found (this one captured steps, and no step was by all of them).
  Status check_of_all(const LinkCounters& link, std::uint32_t ranks) const;

 private:
  // The number of steps due after `saved`; none: that step is forgotten, or never started here.
  std::optional<std::uint64_t> due_after(Step saved) const;
  void held(std::chrono::nanoseconds duration);

  struct Ended {
    Step step{};
    std::uint64_t bytes = 0;
    std::uint64_t bytes_unchanged = 0;
    std::chrono::nanoseconds took{0};
    std::optional<Error> error;
  };

  struct StartedSave {
    Step step{};
    std::uint64_t due_count = 0;  // This one included.
  };

  struct NotSaved {
    Step step{};
    std::string why;
  };

  const std::string logged_job_;
  const std::string who_;  // "rank 3 of job gpt2".
  Stats stats_;
  std::uint64_t due_count_ = 0;
  std::optional<Step> newest_due_;
  std::deque<StartedSave> starts_;           // The newest.
  std::deque<NotSaved> not_saved_;           // The newest.
  std::chrono::nanoseconds held_before_{0};  // When the newest capture started.
  std::optional<Ended> line_;                // To be written.
  LogLimit failures_{60.0};

  // Handed over: written by `ended`, then read by the training thread once the flag is set.
  Ended ended_;
  std::atomic<bool> has_ended_{false};
};

}  // namespace ckpt::client
