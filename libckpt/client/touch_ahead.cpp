#include "client/touch_ahead.hpp"

#include <algorithm>
#include <utility>

#include "base/units.hpp"
#include "os/fault_in.hpp"

namespace ckpt::client {

namespace {

// An offer that comes meanwhile waits for one of these.
constexpr std::size_t piece_bytes = MiB;

}  // namespace

TouchAhead::TouchAhead(std::vector<std::span<std::byte>> tensors, std::uint64_t available) {
  std::uint64_t bytes = 0;
  for (const std::span<std::byte> tensor : tensors) bytes += tensor.size();
  if (bytes <= available / 2) left_ = std::move(tensors);
}

bool TouchAhead::go_on() {
  while (next_ < left_.size() && left_[next_].empty()) ++next_;
  if (next_ == left_.size()) return false;
  std::span<std::byte>& tensor = left_[next_];
  const auto piece = tensor.first(std::min(piece_bytes, tensor.size()));
  os::fault_in(piece);
  tensor = tensor.subspan(piece.size());
  return true;
}

}  // namespace ckpt::client
