#include "node/take_over.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "os/path.hpp"

namespace ckpt::node {

namespace {

// A person, or a loop that asks for the status now and then, sees it in this time.
constexpr Duration news_time = std::chrono::minutes(1);

double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

std::string way_to_read(const JobFacts& facts) {
  if (facts.directory.empty())
    return fmt::format(
        "`ckpt cp memory:{} PLACE` stores what the job holds, and takes nobody's place",
        facts.shape.job);
  return fmt::format(
      "To only read, call libckpt.load_checkpoint(\"{}\"), or use `ckpt export` or `ckpt inspect`: "
      "they take nobody's place",
      os::display(facts.directory));
}

}  // namespace

bool is_news(const TakeOver& taken, Time now) {
  return now - taken.at < news_time;
}

std::string text_for_newer(const TakeOver& taken, const JobFacts& facts) {
  if (taken.is_killed)
    return fmt::format(
        "this process, pid {}, took the place of pid {}, which was stopped (SIGSTOP, Ctrl-Z) and "
        "was killed: a stopped trainer does not end by itself, and keeps the job's memory. {}",
        taken.newer, taken.older, way_to_read(facts));
  const std::string last =
      taken.captured ? fmt::format("captured step {} {:.1f} s ago", number(taken.captured->step),
                                   seconds(taken.at - taken.captured->at))
                     : std::string("has captured no step");
  return fmt::format(
      "this process, pid {}, takes the place of pid {}, which is alive and {}: no later step of "
      "that process is captured or stored. That is right if it hangs. If its training is to go on, "
      "end this process and start the training again. {}",
      taken.newer, taken.older, last, way_to_read(facts));
}

std::string text_for_older(const TakeOver& taken) {
  return fmt::format(
      "a newer trainer with the same job name and rank attached, pid {}: no later step of this "
      "process, pid {}, is captured or stored. If pid {} only reads, let it call "
      "libckpt.load_checkpoint, which takes nobody's place, and start this training again; a "
      "different run needs another job name",
      taken.newer, taken.older, taken.newer);
}

nlohmann::json status_of(const TakeOver& taken, std::uint32_t rank, Time now) {
  nlohmann::json step;
  if (taken.captured) step = number(taken.captured->step);
  return {{"rank", rank},
          {"older_process", taken.older},
          {"newer_process", taken.newer},
          {"captured", std::move(step)},
          {"seconds_ago", (now - taken.at) / std::chrono::seconds(1)}};
}

}  // namespace ckpt::node
