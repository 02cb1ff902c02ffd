// ObjectReader, ObjectWriter: one object as a File.
//
// A reader asks for ranges of the object that it has opened: if another one takes its name, the
// reads fail. A writer gathers what is written to parts and uploads each as soon as it is whole,
// from the memory that it was given. Files of one part are put at once.
//
//   create -> allocate (the size, or more) -> write_lasting_at ... -> truncate (if it was more) ->
//   sync_data: now the object exists
//
// Memory: `write_at` copies its bytes, since they may change before their part is whole; a part
// that was sent frees them.
#pragma once

#include <list>
#include <map>
#include <memory>

#include "bucket/client.hpp"
#include "os/file_system.hpp"

namespace ckpt::bucket {

// Two Chunks. S3 takes no smaller parts than 5 MiB, except the last.
inline constexpr std::uint64_t part_bytes_min = 8u << 20;
// S3 takes no more parts.
inline constexpr std::uint64_t parts_max = 10'000;

// The size of all parts of an object but the last: whole Chunks.
std::uint64_t part_bytes_of(std::uint64_t object_bytes);

class ObjectReader final : public os::File {
 public:
  ObjectReader(Client& client, BucketPath place, ObjectFacts facts)
      : client_(client), place_(std::move(place)), facts_(std::move(facts)) {}

  Task<void> read_at(std::uint64_t offset, std::span<std::byte> bytes) override;
  Task<void> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override;
  Task<void> allocate(std::uint64_t bytes) override;
  Task<void> truncate(std::uint64_t bytes) override;
  Task<void> sync_data() override;
  Task<void> close() override;
  bool is_direct() const override { return true; }

 private:
  Client& client_;
  const BucketPath place_;
  const ObjectFacts facts_;
};

class ObjectWriter final : public os::File {
 public:
  ObjectWriter(Client& client, BucketPath place) : client_(client), place_(std::move(place)) {}
  ~ObjectWriter() override;  // Aborts an upload that was not completed.

  Task<void> read_at(std::uint64_t offset, std::span<std::byte> bytes) override;
  Task<void> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override;
  Task<void> write_lasting_at(std::uint64_t offset, std::span<const std::byte> bytes) override;
  // Once, before the first write: the object's size. Begins the upload.
  Task<void> allocate(std::uint64_t bytes) override;
  // After the last write: the object ends here.
  Task<void> truncate(std::uint64_t bytes) override;
  // Errors: invalid_argument (bytes are missing).
  Task<void> sync_data() override;
  Task<void> close() override;
  bool is_direct() const override { return true; }

 private:
  struct Part {
    std::map<std::uint64_t, std::span<const std::byte>> pieces;  // By offset in the object.
    std::uint64_t bytes = 0;
    bool is_sent = false;
    std::list<std::vector<std::byte>> copies;  // Bytes from write_at, until they are sent.
  };
  std::uint64_t bytes_of_part(std::size_t index) const;
  Task<void> add_piece(std::uint64_t offset, std::span<const std::byte> piece);
  Task<void> send_part(std::size_t index);
  // The bytes of a write at `offset` that lie in the part that it begins in.
  std::uint64_t bytes_in_part(std::uint64_t offset, std::uint64_t bytes) const;
  Status check_write(std::uint64_t offset, std::uint64_t bytes) const;
  Pieces pieces_of(const Part& part) const;

  Client& client_;
  const BucketPath place_;
  std::uint64_t bytes_ = 0;
  std::uint64_t part_bytes_ = 0;  // 0: not allocated.
  std::string upload_;            // Empty: the object has one part.
  std::vector<Part> parts_;
  std::vector<UploadedPart> uploaded_;
  bool is_complete_ = false;
};

}  // namespace ckpt::bucket
