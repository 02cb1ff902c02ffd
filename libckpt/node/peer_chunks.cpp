#include "node/peer_chunks.hpp"

namespace ckpt::node {

std::span<std::byte> PeerChunks::buffer_of(std::size_t index) {
  auto& buffer = used_[index];
  if (!buffer && !free_.empty()) {
    buffer = std::move(free_.back());
    free_.pop_back();
  }
  if (!buffer) buffer = std::make_unique_for_overwrite<std::byte[]>(record_.chunk_bytes);
  return {buffer.get(), record_.chunk(index).bytes};
}

replicate::Destination PeerChunks::destination() {
  replicate::Destination::PlacesOf places = [this](std::size_t index) {
    auto found = sink_.places_of(index);
    if (found.empty()) found.push_back(buffer_of(index));
    return found;
  };
  replicate::Destination::Placed placed = [this](std::size_t index, std::vector<Crc32> crcs) {
    return this->placed(index, std::move(crcs));
  };
  return replicate::Destination(std::move(places), std::move(placed));
}

Task<void> PeerChunks::placed(std::size_t index, std::vector<Crc32> crcs) {
  if (!used_.contains(index)) {
    if (sink_.placed) sink_.placed(index, crcs);
    co_return Status();
  }
  if (!sink_.copy) co_return Status();
  const std::span<const std::byte> bytes = buffer_of(index);
  std::function<void()> copy = [&] { sink_.copy(index, bytes); };
  auto copied = co_await run_on(compute_, std::move(copy));
  co_return copied;
}

void PeerChunks::take(std::size_t index) {
  const auto used = used_.find(index);
  const bool is_brought = used == used_.end() || sink_.copy != nullptr;
  sink_.take(index, is_brought ? std::span<const std::byte>() : buffer_of(index));
  if (used == used_.end()) return;
  free_.push_back(std::move(used->second));
  used_.erase(used);
}

}  // namespace ckpt::node
