// Client: one Checkpointer for one Session of Python, and what is registered with it.
//
// Threads:   any; calls are made one at a time. The GIL is not held while one waits for another.
// Lifetime:  the caller keeps registered tensors alive until others replace them.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <ckpt/framework.hpp>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ckpt::python {

// A mutex that knows whether another thread wants it, so that a long holder can let it go first.
class SharedTurn {
 public:
  void lock() {
    ++wanted_;
    mutex_.lock();
    --wanted_;
  }
  void unlock() { mutex_.unlock(); }
  bool is_wanted() const { return wanted_ > 0; }

 private:
  std::atomic<int> wanted_{0};
  std::mutex mutex_;
};

class Client {
 public:
  // The keys are the names of options. Lists are strings, as in the environment.
  explicit Client(const nanobind::dict& options);

  // Registers exactly these, as tensor.hpp says, and archives as (name, [such tensors]).
  // Registrations that did not change stay.
  void update(const nanobind::list& tensors, const nanobind::list& archives);
  void set_blob(const std::string& name, const nanobind::bytes& content);
  nanobind::object blob(const std::string& name);
  // For the next save, as Checkpointer::set_metric.
  void set_metric(const std::string& name, double value);
  void prepare();
  void prepare_in_background();

  bool is_due(std::uint64_t step);
  void give_up(std::uint64_t step, const std::string& why);
  // The outcome's name: "started", "not_due", "skipped_no_slot", ...
  std::string save(std::uint64_t step, std::uint64_t stream, bool always, double wait);
  void guard(std::uint64_t stream);
  // Whether the daemon learns of a capture only once settle() has judged it. An empty problem
  // accepts the capture.
  void hold(bool holds);
  void settle(std::uint64_t step, const std::string& problem);
  // The newest held capture whose last byte was copied. Never waits.
  std::optional<std::uint64_t> copied() const;
  // Other threads get their turn meanwhile, so that a wait never holds up training. An exception
  // of a signal handler, such as that of ^C, ends it.
  void wait(std::uint64_t step, const std::string& level, double seconds);
  // `choose(step, [(name, type, shape, alias_of)], structure)` returns tensors as update() takes
  // them. The structure is the blob of the items, or None. `source`: "memory", "storage", or None.
  nanobind::dict restore(std::optional<std::uint64_t> step, const nanobind::callable& choose,
                         const std::optional<std::string>& source);
  // The same of any rank's shard of a published checkpoint.
  nanobind::dict restore_from(const std::string& path, std::uint32_t rank,
                              const nanobind::callable& choose);
  // Fills what is registered, with the pieces of all ranks that saved it.
  nanobind::dict restore_pieces(const std::string& path);
  // Each restore calls `watch(phase, bytes, bytes_total, source_name, waiting)`, unless it is None.
  // An exception of it, or of a signal handler, ends a restore that waits; else it is raised
  // afterwards.
  void watch_restores(nanobind::object watch);
  void start_fresh();
  void restored_ok(std::uint64_t step);
  nanobind::dict stats();
  // The job's status, as JSON; empty when disabled.
  std::string status();
  void close(double seconds);
  // Disconnects without a message: for the daemon the trainer has died.
  void drop();

 private:
  enum class Kind : std::uint8_t { archive, tensor };
  using Name = std::pair<Kind, std::string>;  // An archive and a tensor may have one name.
  FrameworkCheckpointer& checkpointer();
  // Returns what `call(checkpointer)` does: one call at a time, and without the GIL.
  template <class Call>
  auto in_turn(Call call);
  nanobind::dict restore_chosen(RestoreRequest request, const nanobind::callable& choose,
                                std::uint32_t rank);
  // Raises what was `raised` meanwhile, or the error.
  nanobind::dict answer_of(const Result<Restored>& restored, nanobind::object raised);
  bool report(const RestoreProgress& progress);

  SharedTurn mutex_;
  std::atomic<std::int64_t> copied_{-1};  // Outlives the Checkpointer, whose threads write it.
  std::optional<FrameworkCheckpointer> checkpointer_;
  std::map<Name, std::vector<NamedTensor>> registered_;  // A tensor has one part.
  nanobind::object watch_;  // Guarded by the GIL, as is what it raised.
  nanobind::object raised_;
};

}  // namespace ckpt::python
