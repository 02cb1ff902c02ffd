// FailingFileSystem: passes calls on to any FileSystem until its daemon dies.
//
// From the call with the chosen number on, every call fails and nothing is carried out: neither
// calls of files that are open, nor those of a bucket. What came before stays as it is.
//
// Threads: as the FileSystem below. Lifetime: `inner` outlives it and all of its files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.hpp"
#include "os/file_system.hpp"

namespace ckpt::test {

class FailingFileSystem final : public os::FileSystem {
 public:
  explicit FailingFileSystem(os::FileSystem& inner) : inner_(inner), objects_(*this) {}

  // Counts from here: with 0 the next call fails.
  void die_at(std::uint64_t call) {
    CKPT_ASSERT(!dies_at_.has_value());
    calls_ = 0;
    dies_at_ = call;
  }
  // Returns whether the chosen call came.
  bool revive() {
    CKPT_ASSERT(dies_at_.has_value());
    const bool died = calls_ > *dies_at_;
    dies_at_.reset();
    return died;
  }

  Task<std::unique_ptr<os::File>> create(std::string path, os::Caching caching) override {
    return open_file(std::move(path), caching, true);
  }
  Task<std::unique_ptr<os::File>> open_read(std::string path, os::Caching caching) override {
    return open_file(std::move(path), caching, false);
  }
  Task<std::vector<std::byte>> read_small(std::string path, std::uint64_t bytes_max) override {
    return pass(inner_.read_small(std::move(path), bytes_max));
  }
  Task<void> write_small(std::string path, std::vector<std::byte> bytes) override {
    return pass(inner_.write_small(std::move(path), std::move(bytes)));
  }
  Task<void> append_small(std::string path, std::vector<std::byte> bytes,
                          os::Syncing syncing) override {
    return pass(inner_.append_small(std::move(path), std::move(bytes), syncing));
  }
  Task<void> make_directory(std::string path) override {
    return pass(inner_.make_directory(std::move(path)));
  }
  Task<void> rename(std::string from, std::string to, os::RenameMode mode) override {
    return pass(inner_.rename(std::move(from), std::move(to), mode));
  }
  Task<void> remove_file(std::string path) override {
    return pass(inner_.remove_file(std::move(path)));
  }
  Task<void> remove_directory(std::string path) override {
    return pass(inner_.remove_directory(std::move(path)));
  }
  Task<void> sync_directory(std::string path) override {
    return pass(inner_.sync_directory(std::move(path)));
  }
  Task<std::vector<os::DirectoryEntry>> list(std::string path) override {
    return pass(inner_.list(std::move(path)));
  }
  Task<os::FileStatus> status(std::string path) override {
    return pass(inner_.status(std::move(path)));
  }
  Task<os::Space> space(std::string path) override { return pass(inner_.space(std::move(path))); }
  os::Objects* objects(std::string_view path) override {
    objects_.inner = inner_.objects(path);
    return objects_.inner == nullptr ? nullptr : &objects_;
  }

 private:
  class OpenFile final : public os::File {
   public:
    OpenFile(FailingFileSystem& owner, std::unique_ptr<os::File> inner)
        : owner_(owner), inner_(std::move(inner)) {}
    Task<void> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
      return owner_.pass(inner_->write_at(offset, bytes));
    }
    Task<void> write_lasting_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
      return owner_.pass(inner_->write_lasting_at(offset, bytes));
    }
    Task<void> read_at(std::uint64_t offset, std::span<std::byte> bytes) override {
      return owner_.pass(inner_->read_at(offset, bytes));
    }
    Task<void> allocate(std::uint64_t bytes) override {
      return owner_.pass(inner_->allocate(bytes));
    }
    Task<void> truncate(std::uint64_t bytes) override {
      return owner_.pass(inner_->truncate(bytes));
    }
    Task<void> clone_at(os::CloneRange range, os::CloneSource source) override {
      return owner_.pass(inner_->clone_at(range, std::move(source)));
    }
    Task<void> sync_data() override { return owner_.pass(inner_->sync_data()); }
    Task<void> close() override { return owner_.pass(inner_->close()); }
    bool is_direct() const override { return inner_->is_direct(); }

   private:
    FailingFileSystem& owner_;
    const std::unique_ptr<os::File> inner_;
  };

  class FailingObjects final : public os::Objects {
   public:
    explicit FailingObjects(FailingFileSystem& owner) : owner_(owner) {}
    Task<os::TaggedBytes> read_tagged(std::string path, std::uint64_t bytes_max) override {
      return owner_.pass(inner->read_tagged(std::move(path), bytes_max));
    }
    Task<void> put_small(std::string path, std::vector<std::byte> bytes,
                         os::PutCondition condition) override {
      return owner_.pass(inner->put_small(std::move(path), std::move(bytes), std::move(condition)));
    }
    Task<std::vector<os::ObjectEntry>> list_below(std::string path) override {
      return owner_.pass(inner->list_below(std::move(path)));
    }
    Task<std::vector<os::Upload>> list_uploads_below(std::string path) override {
      return owner_.pass(inner->list_uploads_below(std::move(path)));
    }
    Task<void> abort_upload(std::string path, std::string id) override {
      return owner_.pass(inner->abort_upload(std::move(path), std::move(id)));
    }
    std::string silence(std::string_view path) const override { return inner->silence(path); }

    os::Objects* inner = nullptr;  // Of the path that was asked for last.

   private:
    FailingFileSystem& owner_;
  };

  bool is_dead() { return dies_at_ && calls_++ >= *dies_at_; }

  // A call that is never awaited does nothing.
  template <class T>
  Task<T> pass(Task<T> call) {
    if (is_dead()) co_return fail(Errc::io, "the daemon is dead");
    auto done = co_await std::move(call);
    co_return done;
  }
  Task<std::unique_ptr<os::File>> open_file(std::string path, os::Caching caching, bool is_new) {
    if (is_dead()) co_return fail(Errc::io, "the daemon is dead");
    auto call = is_new ? inner_.create(path, caching) : inner_.open_read(path, caching);
    CKPT_CO_TRY(auto file, co_await std::move(call));
    co_return std::make_unique<OpenFile>(*this, std::move(file));
  }

  os::FileSystem& inner_;
  FailingObjects objects_;
  std::uint64_t calls_ = 0;
  std::optional<std::uint64_t> dies_at_;
};

}  // namespace ckpt::test
