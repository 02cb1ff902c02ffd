// BlobStore: small named state beside the tensors: borrowed from the trainer, or kept here.
#pragma once

#include <ckpt/result.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/shard_record.hpp"

namespace ckpt::client {

class BlobStore {
 public:
  explicit BlobStore(std::uint64_t capacity) : capacity_(capacity) {}

  // Errors: invalid_argument (a duplicate, a bad name, null bytes), exhausted (the capacity).
  Status add(std::string name, std::span<std::byte> bytes);
  // Errors: invalid_argument (a name that add() took), exhausted.
  Status set(std::string name, std::span<const std::byte> bytes);
  std::optional<std::span<const std::byte>> find(std::string_view name) const;

  bool is_empty() const { return blobs_.empty(); }
  // Both in the order of the names, and valid until the next change. Neither allocates.
  std::span<const std::span<const std::byte>> spans();
  std::span<const std::string> names();

  // Whether restore() can work. Errors: invalid_argument (missing, or of another size).
  Status check(const format::ShardRecord& record) const;
  // Writes the record's blobs back from the verified `slot`. Blobs without add() are kept for
  // find().
  void restore(const format::ShardRecord& record, std::span<const std::byte> slot);
  // Keeps the record's blobs for find(), except those of add().
  void keep(const format::ShardRecord& record, std::span<const std::byte> slot);

 private:
  struct Blob {
    std::span<std::byte> borrowed;  // From add(); else the bytes are in `kept`.
    std::vector<std::byte> kept;
    bool is_borrowed = false;
    std::span<const std::byte> bytes() const {
      return is_borrowed ? std::span<const std::byte>(borrowed) : std::span<const std::byte>(kept);
    }
  };
  Status check_room(std::string_view name, std::size_t bytes) const;
  void rebuild();

  std::uint64_t capacity_;
  std::map<std::string, Blob, std::less<>> blobs_;
  std::vector<std::string> names_;  // These three are parallel.
  std::vector<const Blob*> in_order_;
  std::vector<std::span<const std::byte>> spans_;
};

}  // namespace ckpt::client
