// Objects: the calls of a bucket that replace renames; only `storage` looks for it.
//
// A bucket has no directories and no rename. A small object that is put under a condition is its
// one atomic operation: of several writers, one succeeds, and the others learn that they did not.
//
// Threads: as FileSystem.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/task.hpp"

namespace ckpt::os {

enum class PutMode : std::uint8_t {
  replace,       // An object that is there, too.
  if_absent,     // Else invalid_argument with cause EEXIST.
  if_unchanged,  // The object still has this tag. Else invalid_argument with cause EEXIST.
};
class PutCondition {
 public:
  explicit PutCondition(PutMode mode, std::string tag = {}) : mode_(mode), tag_(std::move(tag)) {}
  PutMode mode() const { return mode_; }
  const std::string& tag() const { return tag_; }

 private:
  PutMode mode_;
  std::string tag_;
};

struct TaggedBytes {
  std::vector<std::byte> bytes;
  std::string tag;  // Equal tags of one path mean equal bytes.
};
struct ObjectEntry {
  std::string name;  // Below the path that was asked for: "t2.0011/rank-00000.part".
  std::uint64_t bytes = 0;
  std::optional<Duration> age;  // Since it was written, by the server's clock. None: not known.
};
struct Upload {
  std::string name;  // As in ObjectEntry.
  std::string id;
  std::optional<Duration> age;  // Since it was begun.
};

class Objects {
 public:
  virtual ~Objects() = default;

  // Errors: not_found, exhausted (more than `bytes_max`), io.
  virtual Task<TaggedBytes> read_tagged(std::string path, std::uint64_t bytes_max) = 0;
  // Atomic and durable. Errors: invalid_argument (the condition), unsupported (the server has no
  // such condition), io: it may have happened, or may still happen.
  virtual Task<void> put_small(std::string path, std::vector<std::byte> bytes,
                               PutCondition condition) = 0;
  // All objects below, at any depth, sorted by name. None: an empty list.
  virtual Task<std::vector<ObjectEntry>> list_below(std::string path) = 0;
  // Uploads that were begun, and neither completed nor aborted: they are no objects, and take room.
  virtual Task<std::vector<Upload>> list_uploads_below(std::string path) = 0;
  virtual Task<void> abort_upload(std::string path, std::string id) = 0;  // Gone: success.
  // Why requests for this path and below are tried again just now, or failed since the server's
  // last answer; for people. Empty: none for long.
  virtual std::string silence(std::string_view path) const = 0;
};

}  // namespace ckpt::os
