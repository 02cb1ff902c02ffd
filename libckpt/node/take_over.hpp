// TakeOver: a trainer came in the place of one that is alive, or was stopped and so was killed.
//
// A restarted trainer does so whose predecessor hangs, and it must. So does, by mistake, a script
// that only wants to read. The engine cannot distinguish them, so both processes, the log and the
// status say who took whose place, and how to read without taking it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "node/job_facts.hpp"

namespace ckpt::node {

// The newest step that a session captured, and when.
struct LastCapture {
  Step step{};
  Time at{};
};

struct TakeOver {
  std::int64_t older = 0, newer = 0;    // Processes.
  std::optional<LastCapture> captured;  // By the older one.
  Time at{};
  bool is_killed = false;  // The older one, which was stopped: nothing of it goes on.
};

// For as long as it counts as trouble of the newer one, so that it is noticed.
bool is_news(const TakeOver& taken, Time now);
// Texts for the log of each of the two.
std::string text_for_newer(const TakeOver& taken, const JobFacts& facts);
std::string text_for_older(const TakeOver& taken);
nlohmann::json status_of(const TakeOver& taken, std::uint32_t rank, Time now);

}  // namespace ckpt::node
