// EarlyChecksums: checksums of a Slot's Chunks, taken as its bytes arrive.
//
// A trainer that copies from a GPU reports how far it has come. Its word is not trusted: where it
// was too early, the checksum does not match, and the copy is found bad at its first reading.
//
// Threads:  the engine's. Lifetime: the coroutine holds it, and the Slot.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "arena/slot.hpp"
#include "base/compute.hpp"

namespace ckpt::node {

class EarlyChecksums : public std::enable_shared_from_this<EarlyChecksums> {
 public:
  EarlyChecksums(asio::any_io_executor executor, Compute* compute,
                 std::shared_ptr<arena::Slot> slot, std::uint64_t chunk_bytes)
      : executor_(std::move(executor)),
        compute_(compute),
        slot_(std::move(slot)),
        chunk_bytes_(chunk_bytes) {}

  // The first `bytes` of the Slot are there.
  void arrived(std::uint64_t bytes);
  // Those of the first Chunks, and the end of it.
  std::vector<Crc32> take();

 private:
  bool has_next() const;
  asio::awaitable<void> run();

  asio::any_io_executor executor_;
  Compute* compute_;
  std::shared_ptr<arena::Slot> slot_;
  std::uint64_t chunk_bytes_;
  std::uint64_t arrived_ = 0;
  std::vector<Crc32> crcs_;
  bool is_running_ = false;
  bool is_taken_ = false;
};

}  // namespace ckpt::node
