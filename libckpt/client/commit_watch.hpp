// CommitWatch: notices that saves find no free Slot because other ranks do not save their parts.
//
// A program that saves on rank 0 alone looks well otherwise: its Slots hold steps that no other
// rank has, and all later saves are skipped.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "client/link_view.hpp"

namespace ckpt::client {

class CommitWatch {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  // Slow copies to peers or storage end some day, and free a Slot.
  static constexpr std::chrono::seconds patience{30};

  explicit CommitWatch(std::uint32_t ranks) : ranks_(ranks) {}

  // A save found no free Slot. Returns whether text() is new since the call before.
  bool skipped(const LinkCounters& link, TimePoint now);
  void started() { begin({}, {}); }

  // For people; empty: a Slot was free, or has not been missed for long.
  std::string text() const;

 private:
  void begin(std::optional<Step> committed, TimePoint now);

  const std::uint32_t ranks_;
  std::optional<Step> committed_;
  TimePoint since_;
  std::uint64_t row_ = 0;
  bool is_long_ = false;
};

}  // namespace ckpt::client
