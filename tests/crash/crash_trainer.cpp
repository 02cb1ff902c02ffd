// CrashTrainer: a trainer made to be killed: it prints what it learns, and checks what it gets.
//
// It restores, verifies every byte against the step of the answer, and trains on. Each event is one
// line, written at once, so that a SIGKILL loses none: the driver reads what was promised.
//
// Exit codes: 0 trained to the end, 2 wrong use or no daemon, 3 wrong bytes, 4 restore failed,
//             5 close failed, 6 nothing was saved any more, 7 the GPU was lost.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ckpt/ckpt.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "crash_gpu.hpp"
#include "crash_state.hpp"

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
constexpr milliseconds settle_time(15'000);
constexpr milliseconds close_time(20'000);

struct Arguments {
  std::map<std::string, std::string> values;

  std::string text(const std::string& name, const std::string& otherwise = "") const {
    const auto found = values.find(name);
    return found == values.end() ? otherwise : found->second;
  }
  std::uint64_t number(const std::string& name, std::uint64_t otherwise) const {
    const auto found = values.find(name);
    return found == values.end() ? otherwise : std::strtoull(found->second.c_str(), nullptr, 10);
  }
  bool is_set(const std::string& name) const { return values.contains(name); }
};

// --name value, or --name alone.
Arguments parse(int count, char** texts) {
  Arguments arguments;
  for (int i = 1; i < count; ++i) {
    const std::string name = std::strncmp(texts[i], "--", 2) == 0 ? texts[i] + 2 : texts[i];
    const bool has_value = i + 1 < count && std::strncmp(texts[i + 1], "--", 2) != 0;
    arguments.values[name] = has_value ? texts[++i] : "";
  }
  return arguments;
}

class Events {
 public:
  explicit Events(const std::string& path)
      : fd_(path.empty() ? STDOUT_FILENO
                         : ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) {}

  template <class... Parts>
  void say(fmt::format_string<Parts...> format, Parts&&... parts) {
    const std::string line = fmt::format(format, std::forward<Parts>(parts)...) + "\n";
    [[maybe_unused]] const ssize_t written = ::write(fd_, line.data(), line.size());
  }

  // Prints the library's promises since the last look.
  void say_stats(const ckpt::Stats& stats) {
    if (stats.daemon_restarts != restarts_) say("restarts {}", stats.daemon_restarts);
    restarts_ = stats.daemon_restarts;
    say_level("captured", stats.captured, captured_);
    say_level("committed", stats.committed, committed_);
    say_level("durable", stats.durable, durable_);
  }

 private:
  void say_level(const char* name, std::optional<ckpt::Step> now, std::optional<ckpt::Step>& told) {
    if (now && now != told) say("{} {}", name, ckpt::number(*now));
    told = now;
  }

  int fd_;
  std::uint64_t restarts_ = 0;
  std::optional<ckpt::Step> captured_, committed_, durable_;
};

ckpt::Options options_from(const Arguments& arguments) {
  ckpt::Options options;
  options.job = arguments.text("job", "crash");
  options.dir = arguments.text("dir");
  options.runtime_dir = arguments.text("runtime");
  options.rank = static_cast<std::uint32_t>(arguments.number("rank", 0));
  options.world_size = static_cast<std::uint32_t>(arguments.number("world", 1));
  options.node = arguments.text("node");
  options.secret_file = arguments.text("secret");
  options.save_storage_interval = {arguments.number("storage-interval", 2), {}};
  options.gpu_gap = ckpt::GpuGap::memset;  // So that the calls of the driver can be counted.
  if (arguments.is_set("mem-ms"))
    options.save_mem_interval = {0, milliseconds(arguments.number("mem-ms", 0))};
  options.max_ckpt_num = static_cast<std::uint32_t>(arguments.number("keep", 2));
  options.restore_deadline = milliseconds(arguments.number("restore-ms", 20'000));
  options.skip_unchanged = arguments.is_set("skip-unchanged");
  options.copy_threads = 1;
  options.blob_capacity = 64 * 1024;
  return options;
}

// "A@address,B@address".
ckpt::Status add_nodes(ckpt::Options& options, const std::string& list) {
  std::size_t begin = 0;
  while (begin < list.size()) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    CKPT_TRY(auto node, ckpt::Node::parse(list.substr(begin, end - begin)));
    options.nodes.push_back(std::move(node));
    begin = end + 1;
  }
  return {};
}

int complain(Events& events, int code, const std::string& text) {
  events.say("failed {}", text);
  std::fprintf(stderr, "crash_trainer: %s\n", text.c_str());
  return code;
}

// A worker as a data loader forks it: it holds all that was inherited, and outlives the trainer.
void fork_worker(Events& events) {
  const pid_t worker = ::fork();
  if (worker == 0) {
    for (;;) ::pause();
  }
  events.say("worker {}", worker);
}

const char* text_of(ckpt::SaveOutcome outcome) {
  switch (outcome) {
    case ckpt::SaveOutcome::started:
      return "started";
    case ckpt::SaveOutcome::skipped_no_slot:
      return "no_slot";
    case ckpt::SaveOutcome::skipped_unavailable:
      return "unavailable";
    case ckpt::SaveOutcome::skipped_by_agreement:
      return "by_agreement";
    case ckpt::SaveOutcome::not_due:
      return "not_due";
    case ckpt::SaveOutcome::disabled:
      return "disabled";
  }
  return "unknown";
}

crash::State::Place place_of(const Arguments& arguments) {
  return {static_cast<std::uint32_t>(arguments.number("rank", 0)),
          static_cast<std::uint32_t>(arguments.number("world", 1)),
          arguments.number("frozen-mib", 0) << 20};
}

class Training {
 public:
  Training(const Arguments& arguments, const crash::Gpu* gpu,
           ckpt::FrameworkCheckpointer checkpointer, Events& events)
      : arguments_(arguments),
        events_(events),
        stream_(gpu != nullptr ? gpu->stream() : ckpt::Stream{}),
        state_(place_of(arguments), gpu),
        checkpointer_(std::move(checkpointer)),
        wait_level_(level_named(arguments.text("wait"))) {}

  int run() {
    if (const auto added = state_.register_with(checkpointer_); !added)
      return complain(events_, 2, added.error().message());
    if (const int code = restore(); code != 0) return code;
    if (arguments_.is_set("fork-worker")) fork_worker(events_);
    const std::uint64_t last = step_ + arguments_.number("steps", 10);
    while (step_ < last && !is_gpu_lost_) train();
    if (is_gpu_lost_) return complain(events_, 7, "the GPU is lost");
    if (const int code = settle(); code != 0) return code;
    while (arguments_.is_set("stay")) ::pause();
    if (arguments_.is_set("close")) {
      const auto closed = checkpointer_.close(close_time);
      events_.say_stats(checkpointer_.stats());
      const bool is_lost = !closed && closed.error().code() == ckpt::Errc::not_found;
      if (is_lost) events_.say("lost {}", closed.error().message());
      if (!closed && !is_lost) return complain(events_, 5, "close: " + closed.error().message());
      events_.say("closed");
    }
    events_.say("done {}", step_);
    return 0;
  }

 private:
  static std::optional<ckpt::Level> level_named(const std::string& name) {
    for (const auto level : {ckpt::Level::captured, ckpt::Level::committed, ckpt::Level::durable}) {
      if (name == ckpt::to_string(level)) return level;
    }
    return std::nullopt;
  }

  int restore() {
    events_.say("restoring");
    auto restored = checkpointer_.restore();
    if (!restored && restored.error().code() == ckpt::Errc::unavailable) {
      events_.say("trouble restore: {}", restored.error().message());
      restored = checkpointer_.restore();  // The daemon died in the middle of it.
    }
    if (!restored && restored.error().code() == ckpt::Errc::not_found) {
      events_.say("nothing");
      is_gpu_lost_ = !state_.compute(0);
      return 0;
    }
    if (!restored) return complain(events_, 4, "restore: " + restored.error().message());
    step_ = ckpt::number(restored->step);
    const std::string wrong = state_.difference(checkpointer_, step_);
    if (!wrong.empty())
      return complain(events_, 3, fmt::format("restore of step {}: {}", step_, wrong));
    events_.say("restored {} timeline {} from {}", step_, restored->timeline,
                restored->source_name);
    restored_ = restored->step;
    return 0;
  }

  void train() {
    const auto began = steady_clock::now();
    const auto guarded = checkpointer_.guard(stream_);
    if (!guarded) events_.say("trouble guard: {}", guarded.error().message());
    ++step_;
    // The framework's own calls fail then, too: there is nothing to be saved any more.
    is_gpu_lost_ = !state_.compute(step_);
    if (is_gpu_lost_) return;
    events_.say("saving {}", step_);
    const auto handed = state_.hand_over(checkpointer_, step_);
    if (!handed) events_.say("trouble set_blob: {}", handed.error().message());
    const auto saved = checkpointer_.save_checkpoint_if_needed(ckpt::Step{step_}, stream_);
    if (!saved) events_.say("trouble save {}: {}", step_, saved.error().message());
    if (saved) events_.say("saved {} {}", step_, text_of(*saved));
    if (saved && *saved == ckpt::SaveOutcome::started) last_started_ = ckpt::Step{step_};
    if (restored_) {
      (void)checkpointer_.restored_ok(*restored_);
      events_.say("restored_ok");
      restored_.reset();
    }
    const auto took = std::chrono::duration_cast<milliseconds>(steady_clock::now() - began);
    if (took > longest_) events_.say("longest {}", took.count());
    longest_ = std::max(longest_, took);
    events_.say_stats(checkpointer_.stats());
    if (wait_level_) {
      const auto waited = checkpointer_.wait(ckpt::Step{step_}, *wait_level_, settle_time);
      if (!waited) events_.say("trouble wait {}: {}", step_, waited.error().message());
    }
    // The rest of the step, in which a real trainer computes.
    std::this_thread::sleep_for(std::chrono::microseconds(arguments_.number("step-us", 1000)));
  }

  // Trains on until a step of now or later has reached the level that was asked for, so that the
  // next trainer can be held to it. A daemon that died must have been replaced by then. The ranks
  // of a job do not wait for one another here: all of them end once all have the news.
  int settle() {
    if (const auto level = level_named(arguments_.text("settle"))) {
      const auto deadline = steady_clock::now() + settle_time;
      const std::uint64_t target = step_;
      while (reached(*level) < target && !is_gpu_lost_) {
        if (steady_clock::now() > deadline)
          return complain(
              events_, 6,
              fmt::format("no step from {} on was {}", target, ckpt::to_string(*level)));
        // Alone, nothing can be in the way but the library: its answer to wait() counts too.
        const bool is_alone = arguments_.number("world", 1) == 1;
        if (is_alone && last_started_ && ckpt::number(*last_started_) >= target) {
          const ckpt::Step step = *std::exchange(last_started_, std::nullopt);
          const auto waited = checkpointer_.wait(step, *level, milliseconds(500));
          if (!waited) events_.say("trouble settle: {}", waited.error().message());
          if (waited) break;
        }
        if (reached(*level) < target) train();
      }
      if (is_gpu_lost_) return complain(events_, 7, "the GPU is lost");
      events_.say("settled {}", reached(*level));
    }
    events_.say_stats(checkpointer_.stats());
    events_.say("trained {}", step_);
    return 0;
  }

  std::uint64_t reached(ckpt::Level level) const {
    const ckpt::Stats stats = checkpointer_.stats();
    const auto& newest = level == ckpt::Level::durable ? stats.durable : stats.committed;
    return newest ? ckpt::number(*newest) : 0;
  }

  const Arguments& arguments_;
  Events& events_;
  const ckpt::Stream stream_;
  crash::State state_;
  ckpt::FrameworkCheckpointer
      checkpointer_;  // After the tensors, which it may still copy when it goes.
  std::optional<ckpt::Level> wait_level_;
  std::uint64_t step_ = 0;
  std::optional<ckpt::Step> restored_, last_started_;
  milliseconds longest_{0};
  bool is_gpu_lost_ = false;
};

// Every checkpoint that the directory shows must be whole, whenever one looks.
int check_directory(const Arguments& arguments, Events& events) {
  ckpt::Options options;
  options.job = "check";
  options.embedded = true;
  options.rank = static_cast<std::uint32_t>(arguments.number("rank", 0));
  options.world_size = static_cast<std::uint32_t>(arguments.number("world", 1));
  auto checkpointer = ckpt::FrameworkCheckpointer::open(options);
  if (!checkpointer) return complain(events, 2, checkpointer.error().message());
  crash::State state(place_of(arguments));
  if (const auto added = state.register_with(*checkpointer); !added)
    return complain(events, 2, added.error().message());
  std::set<std::string> visible;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(arguments.text("check"), error)) {
    if (entry.path().filename().string().starts_with("step-")) visible.insert(entry.path());
  }
  for (const std::string& path : visible) {
    const auto restored = checkpointer->restore({.from = path});
    // A daemon that lives may have deleted it meanwhile, which takes its name first.
    if (!restored && !std::filesystem::exists(path, error)) continue;
    if (!restored) return complain(events, 4, path + ": " + restored.error().message());
    const std::uint64_t step = ckpt::number(restored->step);
    const std::string wrong = state.difference(*checkpointer, step);
    if (!wrong.empty()) return complain(events, 3, path + ": " + wrong);
    events.say("whole {}", step);
  }
  std::_Exit(0);  // The engine's heartbeat would hold us for an instant, and there are many of us.
}

}  // namespace

int main(int count, char** texts) {
  const Arguments arguments = parse(count, texts);
  Events events(arguments.text("events"));
  if (arguments.is_set("check")) return check_directory(arguments, events);
  events.say("start {}", ::getpid());
  auto options = options_from(arguments);
  if (const auto added = add_nodes(options, arguments.text("nodes")); !added)
    return complain(events, 2, added.error().message());
  auto checkpointer = ckpt::FrameworkCheckpointer::open(std::move(options));
  if (!checkpointer) return complain(events, 2, "open: " + checkpointer.error().message());
  events.say("opened");
  std::unique_ptr<crash::Gpu> gpu;
  if (arguments.is_set("gpu")) gpu = crash::Gpu::open();
  if (arguments.is_set("gpu") && gpu == nullptr)
    return complain(events, 2, "CKPT_CUDA_DRIVER names no stand-in driver");
  int code = 0;
  {
    Training training(arguments, gpu.get(), std::move(*checkpointer), events);
    code = training.run();
  }
  // After the last handle was let go.
  const std::string wrong = gpu != nullptr ? gpu->violations() : "";
  return wrong.empty() ? code : complain(events, 8, "the GPU's driver: " + wrong);
}
