#include "node/early_checksums.hpp"
#include "base/spawn.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

namespace ckpt::node {

void EarlyChecksums::arrived(std::uint64_t bytes) {
  arrived_ = std::max(arrived_, std::min(bytes, slot_->capacity()));
  if (is_running_ || !has_next()) return;
  is_running_ = true;
  run_detached(executor_, run());
}

std::vector<Crc32> EarlyChecksums::take() {
  is_taken_ = true;
  return std::move(crcs_);
}

bool EarlyChecksums::has_next() const {
  return !is_taken_ && slot_->state() == arena::Slot::State::filling &&
         (crcs_.size() + 1) * chunk_bytes_ <= arrived_;
}

asio::awaitable<void> EarlyChecksums::run() {
  const std::shared_ptr<EarlyChecksums> self = shared_from_this();
  while (has_next()) {
    const auto chunk = slot_->memory().bytes().subspan(crcs_.size() * chunk_bytes_, chunk_bytes_);
    const auto crc = co_await crc32_on(compute_, chunk);
    // Its Slot was taken meanwhile, or the threads have too much to do: sealing takes the rest.
    if (!crc || !has_next()) break;
    crcs_.push_back(*crc);
  }
  is_running_ = false;
}

}  // namespace ckpt::node
