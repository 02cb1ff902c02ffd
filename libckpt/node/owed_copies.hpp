// OwedCopies: what each lane to a target sends next, and since when; for people who wait for it.
//
// Threads: the engine's.
#pragma once

#include <ckpt/result.hpp>
#include <compare>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "base/clock.hpp"
#include "format/shard_record.hpp"

namespace ckpt::node {

// Copy: one shard as it was captured.
using Copy = std::pair<format::ShardId, Digest>;

// Lane: one of the connections to a target, with the coroutine that sends over it.
struct Lane {
  std::string target;
  std::uint32_t number = 0;
  auto operator<=>(const Lane&) const = default;
};

class OwedCopies {
 public:
  struct Owed {
    Copy copy;
    Time since{};
    Time failed_at{};  // The last attempt, and why.
    std::string failure;
    bool has_failed(Time now) const;  // Lately.
  };

  void owe(const Lane& lane, const Copy& copy, Time now);
  void paid(const Lane& lane) { owed_.erase(lane); }
  void failed(const Lane& lane, const Error& error, Time now);
  // Names, of each target, a copy for which `is_late` holds; empty: none.
  using IsLate = std::function<bool(const std::string& target, const Owed& owed)>;
  std::string trouble(Time now, const IsLate& is_late) const;

 private:
  std::map<Lane, Owed> owed_;
};

constexpr Duration copy_slow_after = std::chrono::seconds(30);  // Then it is reported.

}  // namespace ckpt::node
