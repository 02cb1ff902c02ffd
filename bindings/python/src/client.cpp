#include "client.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "failure.hpp"
#include "options.hpp"
#include "tensor.hpp"

namespace nb = nanobind;

namespace ckpt::python {

namespace {

std::chrono::milliseconds milliseconds_of(double seconds) {
  constexpr double longest = 365.0 * 24 * 3600;
  return std::chrono::milliseconds(
      static_cast<std::int64_t>(std::clamp(seconds, 0.0, longest) * 1000));
}

Stream stream_of(std::uint64_t handle) {
  return Stream{reinterpret_cast<void*>(static_cast<std::uintptr_t>(handle))};
}

// For the other ranks. An exception of a user's object may have no text.
std::string first_line_of(const nb::object& raised) {
  try {
    const auto text = nb::cast<std::string>(nb::str(raised));
    return text.substr(0, text.find('\n'));
  } catch (const std::exception&) {
    return "the choice of tensors failed";
  }
}

const char* name_of(SaveOutcome outcome) {
  switch (outcome) {
    case SaveOutcome::not_due:
      return "not_due";
    case SaveOutcome::started:
      return "started";
    case SaveOutcome::skipped_no_slot:
      return "skipped_no_slot";
    case SaveOutcome::skipped_unavailable:
      return "skipped_unavailable";
    case SaveOutcome::disabled:
      return "disabled";
    case SaveOutcome::skipped_by_agreement:
      return "skipped_by_agreement";
  }
  return "unknown";
}

const char* name_of(RestoreProgress::Phase phase) {
  switch (phase) {
    case RestoreProgress::Phase::waiting:
      return "waiting";
    case RestoreProgress::Phase::filling:
      return "filling";
    case RestoreProgress::Phase::copying:
      return "copying";
    case RestoreProgress::Phase::ended:
      return "ended";
  }
  return "unknown";
}

// The blob that names the items of a step's tensors (_registration.STRUCTURE).
constexpr const char* structure_blob = "libckpt.items";

// For so long at a time a wait keeps others waiting, too.
constexpr std::chrono::milliseconds wait_turn{10};

// Runs the handlers of signals that have come, which Python runs on its main thread only. It takes
// the GIL, which others may have for long, only as often as a person notices.
class SignalHandlers {
 public:
  void run_now_and_then() {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return;
    next_ = now + interval;
    const nb::gil_scoped_acquire acquire;
    run();
  }
  static void run() {  // With the GIL in hand.
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }

 private:
  static constexpr std::chrono::milliseconds interval{100};
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + interval;
};

Level level_of(const std::string& name) {
  for (const Level level : {Level::captured, Level::replicated, Level::committed, Level::durable})
    if (name == to_string(level)) return level;
  throw Failure(Errc::invalid_argument,
                "level \"" + name + "\": it is captured, replicated, committed or durable");
}

SourceChoice source_choice_of(const std::string& name) {
  if (name == "memory") return SourceChoice::memory;
  if (name == "storage") return SourceChoice::storage;
  throw Failure(Errc::invalid_argument, "source \"" + name + "\": it is memory or storage");
}

bool are_equal(const TensorRef& one, const TensorRef& other) {
  return one.data == other.data && one.dtype == other.dtype && one.shape == other.shape &&
         one.location == other.location && one.device_index == other.device_index &&
         one.guarded == other.guarded && one.piece == other.piece;
}

bool are_equal(const std::vector<NamedTensor>& one, const std::vector<NamedTensor>& other) {
  return std::ranges::equal(one, other, [](const NamedTensor& a, const NamedTensor& b) {
    return a.name == b.name && are_equal(a.tensor, b.tensor);
  });
}

nb::object number_or_none(const std::optional<Step>& step) {
  if (!step) return nb::none();
  return nb::int_(number(*step));
}

double seconds_of(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

Client::Client(const nb::dict& options) {
  Options given = options_from(options);
  const nb::gil_scoped_release release;
  checkpointer_.emplace(take(FrameworkCheckpointer::open(std::move(given))));
}

template <class Call>
auto Client::in_turn(Call call) {
  const nb::gil_scoped_release release;
  const std::lock_guard lock(mutex_);
  return call(checkpointer());
}

FrameworkCheckpointer& Client::checkpointer() {
  if (!checkpointer_) throw Failure(Errc::invalid_argument, "the session was closed");
  return *checkpointer_;
}

void Client::update(const nb::list& tensors, const nb::list& archives) {
  std::map<Name, std::vector<NamedTensor>> wanted;
  std::vector<Name> order;
  const auto want = [&](Kind kind, const std::string& name, std::vector<NamedTensor> parts) {
    order.emplace_back(kind, name);
    wanted.insert_or_assign(order.back(), std::move(parts));
  };
  for (const nb::handle item : archives) {
    std::vector<NamedTensor> entries;
    for (const nb::handle entry : nb::cast<nb::list>(item[1]))
      entries.push_back(tensor_from(entry));
    want(Kind::archive, nb::cast<std::string>(item[0]), std::move(entries));
  }
  std::vector<std::string> frozen;
  for (const nb::handle item : tensors) {
    NamedTensor tensor = tensor_from(item);
    if (nb::len(item) > 7 && nb::cast<bool>(item[7])) frozen.push_back(tensor.name);
    want(Kind::tensor, tensor.name, {tensor});
  }
  in_turn([&](auto& target) {
    std::erase_if(registered_, [&](const auto& known) {
      const auto same = wanted.find(known.first);
      if (same != wanted.end() && are_equal(same->second, known.second)) return false;
      check(target.remove(known.first.second));
      return true;
    });
    for (const Name& name : order) {
      if (registered_.contains(name)) continue;
      const std::vector<NamedTensor>& parts = wanted.at(name);
      check(name.first == Kind::archive ? target.add_archive(name.second, parts)
                                        : target.add(name.second, parts.front().tensor));
      registered_.emplace(name, parts);
    }
    check(target.set_frozen(frozen));
  });
}

void Client::set_blob(const std::string& name, const nb::bytes& content) {
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(content.data()),
                                         content.size());
  in_turn([&](auto& target) { check(target.set_blob(name, bytes)); });
}

nb::object Client::blob(const std::string& name) {
  // The mutex's holder may need the GIL, in restore(): never wait for it with the GIL in hand.
  const auto copy = in_turn([&](auto& target) -> std::optional<std::vector<std::byte>> {
    const auto found = target.blob(name);
    if (!found) return std::nullopt;
    return std::vector<std::byte>(found->begin(), found->end());
  });
  if (!copy) return nb::none();
  return nb::bytes(copy->data(), copy->size());
}

void Client::set_metric(const std::string& name, double value) {
  in_turn([&](auto& target) { check(target.set_metric(name, value)); });
}

void Client::prepare() {
  in_turn([](auto& target) { check(target.prepare()); });
}

void Client::prepare_in_background() {
  in_turn([](auto& target) { check(target.prepare_in_background()); });
}

bool Client::is_due(std::uint64_t step) {
  return in_turn([&](auto& target) { return take(target.is_due(Step{step})); });
}

void Client::give_up(std::uint64_t step, const std::string& why) {
  in_turn([&](auto& target) { check(target.give_up(Step{step}, why)); });
}

std::string Client::save(std::uint64_t step, std::uint64_t stream, bool always, double wait) {
  const nb::gil_scoped_release release;
  const std::lock_guard lock(mutex_);
  FrameworkCheckpointer& target = checkpointer();
  copied_ = -1;  // After a restore a step may come again.
  return name_of(take(always ? target.save(Step{step}, stream_of(stream), milliseconds_of(wait))
                             : target.save_checkpoint_if_needed(Step{step}, stream_of(stream))));
}

void Client::guard(std::uint64_t stream) {
  in_turn([&](auto& target) { check(target.guard(stream_of(stream))); });
}

void Client::hold(bool holds) {
  std::function<void(Step)> on_copied;
  if (holds) on_copied = [this](Step step) { copied_ = static_cast<std::int64_t>(number(step)); };
  in_turn([&](auto& target) { check(target.hold_captures(std::move(on_copied))); });
}

void Client::settle(std::uint64_t step, const std::string& problem) {
  Status verdict;
  if (!problem.empty()) verdict = fail(Errc::unavailable, problem);
  in_turn([&](auto& target) { check(target.settle(Step{step}, std::move(verdict))); });
}

std::optional<std::uint64_t> Client::copied() const {
  const std::int64_t step = copied_;
  if (step < 0) return std::nullopt;
  return static_cast<std::uint64_t>(step);
}

void Client::wait(std::uint64_t step, const std::string& level, double seconds) {
  using std::chrono::steady_clock;
  const nb::gil_scoped_release release;
  const Level wanted = level_of(level);
  const auto deadline = steady_clock::now() + milliseconds_of(seconds);
  SignalHandlers handlers;
  while (true) {
    handlers.run_now_and_then();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now());
    const auto turn = std::clamp(left, std::chrono::milliseconds(0), wait_turn);
    const auto turn_end = steady_clock::now() + turn;
    const Status waited = [&] {
      const std::lock_guard lock(mutex_);
      return checkpointer().wait(Step{step}, wanted, turn);
    }();
    if (waited) return;
    // An end before the turn is over has another reason than the time.
    const bool is_over = waited.error().code() != Errc::unavailable ||
                         steady_clock::now() < turn_end || steady_clock::now() >= deadline;
    if (is_over) throw Failure(waited.error());
    // A wait holds up no save: a thread that wants to save meanwhile gets the lock first.
    while (mutex_.is_wanted() && steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

nb::dict Client::restore_chosen(RestoreRequest request, const nb::callable& choose,
                                std::uint32_t rank) {
  nb::object raised;  // An exception of `choose`, to be raised again as it was.
  const ChooseTargets ask =
      [&](Step at, std::span<const StoredTensor> stored) -> Result<std::vector<NamedTensor>> {
    const nb::gil_scoped_acquire acquire;
    try {
      nb::list described;
      for (const StoredTensor& tensor : stored) described.append(describe(tensor));
      std::vector<NamedTensor> chosen;
      nb::object parts = nb::none();
      if (const auto blob = checkpointer().blob(structure_blob))
        parts = nb::bytes(blob->data(), blob->size());
      for (const nb::handle item : nb::cast<nb::list>(choose(number(at), described, parts)))
        chosen.push_back(tensor_from(item));
      return chosen;
    } catch (nb::python_error& error) {
      raised = nb::borrow(error.value());
      return fail(Errc::invalid_argument, first_line_of(raised));
    }
  };
  request.watch = [this](const RestoreProgress& progress) { return report(progress); };
  const Result<Restored> restored =
      in_turn([&](auto& target) { return target.restore_chosen(std::move(request), ask, rank); });
  return answer_of(restored, std::move(raised));
}

nb::dict Client::answer_of(const Result<Restored>& restored, nb::object raised) {
  if (!raised.is_valid()) std::swap(raised, raised_);
  raised_.reset();
  if (raised.is_valid()) {
    PyErr_SetObject(raised.type().ptr(), raised.ptr());
    throw nb::python_error();
  }
  if (!restored) throw Failure(restored.error());
  nb::dict answer;
  answer["step"] = number(restored->step);
  answer["timeline"] = restored->timeline;
  answer["source"] = to_string(restored->source);
  answer["source_name"] = restored->source_name;
  answer["world_size"] = restored->saved_by;
  answer["reason"] = restored->reason;
  answer["newest_seen"] = nb::none();
  if (restored->newest_seen) answer["newest_seen"] = number(*restored->newest_seen);
  answer["bytes"] = restored->bytes;
  answer["bytes_from_storage"] = restored->bytes_from_storage;
  answer["seconds"] = seconds_of(restored->took);
  return answer;
}

nb::dict Client::restore_pieces(const std::string& path) {
  RestoreRequest request;
  request.from = path;
  request.watch = [this](const RestoreProgress& progress) { return report(progress); };
  const Result<Restored> restored =
      in_turn([&](auto& target) { return target.restore(std::move(request)); });
  return answer_of(restored, {});
}

void Client::watch_restores(nb::object watch) {
  watch_ = std::move(watch);
}

bool Client::report(const RestoreProgress& progress) {
  const nb::gil_scoped_acquire acquire;
  if (raised_.is_valid()) return false;
  try {
    if (watch_.is_valid() && !watch_.is_none())
      watch_(name_of(progress.phase), progress.bytes, progress.bytes_total, progress.source_name,
             progress.waiting);
    SignalHandlers::run();
  } catch (nb::python_error& error) {
    raised_ = nb::borrow(error.value());
  }
  return !raised_.is_valid();
}

void Client::start_fresh() {
  in_turn([](auto& target) { check(target.start_fresh()); });
}

nb::dict Client::restore(std::optional<std::uint64_t> step, const nb::callable& choose,
                         const std::optional<std::string>& source) {
  RestoreRequest request;
  if (step) request.step = Step{*step};
  if (source) request.source = source_choice_of(*source);
  return restore_chosen(std::move(request), choose, 0);
}

nb::dict Client::restore_from(const std::string& path, std::uint32_t rank,
                              const nb::callable& choose) {
  return restore_chosen({.from = path}, choose, rank);
}

void Client::restored_ok(std::uint64_t step) {
  in_turn([&](auto& target) { check(target.restored_ok(Step{step})); });
}

nb::dict Client::stats() {
  const Stats stats = [&] {
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    return checkpointer_ ? checkpointer_->stats() : Stats{};
  }();
  nb::dict answer;
  answer["saves_started"] = stats.saves_started;
  answer["skipped_no_slot"] = stats.skipped_no_slot;
  answer["skipped_unavailable"] = stats.skipped_unavailable;
  answer["skipped_by_agreement"] = stats.skipped_by_agreement;
  answer["failed"] = stats.failed;
  answer["bytes_captured"] = stats.bytes_captured;
  answer["bytes_unchanged"] = stats.bytes_unchanged;
  answer["held_seconds"] = seconds_of(stats.held);
  answer["held_seconds_max"] = seconds_of(stats.held_max);
  answer["daemon_restarts"] = stats.daemon_restarts;
  answer["captured"] = number_or_none(stats.captured);
  answer["replicated"] = number_or_none(stats.replicated);
  answer["committed"] = number_or_none(stats.committed);
  answer["durable"] = number_or_none(stats.durable);
  answer["last_error"] = stats.last_error;
  answer["degraded"] = stats.degraded;
  return answer;
}

std::string Client::status() {
  return in_turn([](auto& target) { return take(target.status()); });
}

void Client::close(double seconds) {
  const nb::gil_scoped_release release;
  const std::lock_guard lock(mutex_);
  if (!checkpointer_) return;
  const Status closed = checkpointer_->close(milliseconds_of(seconds));
  checkpointer_.reset();
  check(closed);
}

void Client::drop() {
  const nb::gil_scoped_release release;
  const std::lock_guard lock(mutex_);
  checkpointer_.reset();
}

}  // namespace ckpt::python
