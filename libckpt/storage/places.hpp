// Places: the places for checkpoints that the option `dir` names: one, or two.
//
//   /nvme/run, s3://bucket/run every 10
//
// The first place gets every step that is saved to storage. The second one gets copies of some.
#pragma once

#include <chrono>
#include <ckpt/result.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::storage {

// Pace: how often the second place gets a step. One of the two is set.
struct Pace {
  std::uint64_t steps = 1;  // Each so many-th step that the first place got.
  std::chrono::seconds time{0};
  bool operator==(const Pace&) const = default;
};
std::string to_string(const Pace& pace);  // "every 10", "every 30min".

struct SecondDirectory {
  std::string directory;
  Pace pace;
  bool operator==(const SecondDirectory&) const = default;
};

struct Places {
  std::string first;  // Empty: memory only.
  std::optional<SecondDirectory> second;

  std::vector<std::string> directories() const;  // The nearest first.
  bool operator==(const Places&) const = default;
};

// A comma separates two places if a blank, a slash or a scheme ("s3://") follows it. Errors:
// invalid_argument (more than two places, one of them empty, twice the same one, an `every` that is
// unreadable or behind the first one).
Result<Places> parse_places(std::string_view text);
// The text that parse_places reads again.
std::string to_string(const Places& places);

}  // namespace ckpt::storage
