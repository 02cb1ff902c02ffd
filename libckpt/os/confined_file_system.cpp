#include "os/confined_file_system.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <system_error>

#include "base/assert.hpp"
#include "os/path.hpp"

namespace ckpt::os {

namespace {

// No place of checkpoints lies deeper; the path with all its ".." must stay below 4096 bytes.
constexpr int depth_max = 256;

bool is_inside(std::string_view path, std::string_view directory) {
  return path == directory || (path.starts_with(directory) && path[directory.size()] == '/');
}

bool is_it(const ConfinedTo& named, const FileStatus& status) {
  return named.device == status.device && named.inode == status.inode;
}

std::string parent_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

class ConfinedFileSystem final : public FileSystem {
 public:
  ConfinedFileSystem(std::unique_ptr<FileSystem> disk, std::vector<ConfinedTo> directories)
      : disk_(std::move(disk)), directories_(std::move(directories)) {
    CKPT_ASSERT(disk_ != nullptr);
    CKPT_ASSERT(!directories_.empty());
  }

  Task<std::unique_ptr<File>> create(std::string path, Caching caching) override {
    auto file = co_await disk_->create(path, caching);
    auto explained = co_await explain(std::move(file), std::move(path));
    co_return explained;
  }
  Task<void> write_small(std::string path, std::vector<std::byte> bytes) override {
    Status done = co_await disk_->write_small(path, std::move(bytes));
    auto explained = co_await explain(std::move(done), std::move(path));
    co_return explained;
  }
  Task<void> append_small(std::string path, std::vector<std::byte> bytes,
                          Syncing syncing) override {
    Status done = co_await disk_->append_small(path, std::move(bytes), syncing);
    auto explained = co_await explain(std::move(done), std::move(path));
    co_return explained;
  }
  Task<void> make_directory(std::string path) override {
    Status done = co_await disk_->make_directory(path);
    auto explained = co_await explain(std::move(done), std::move(path));
    co_return explained;
  }
  Task<void> rename(std::string from, std::string to, RenameMode mode) override {
    Status done = co_await disk_->rename(from, to, mode);
    auto explained = co_await explain(std::move(done), std::move(to));
    co_return explained;
  }
  Task<void> remove_file(std::string path) override {
    Status done = co_await disk_->remove_file(path);
    auto explained = co_await explain(std::move(done), std::move(path));
    co_return explained;
  }
  Task<void> remove_directory(std::string path) override {
    Status done = co_await disk_->remove_directory(path);
    auto explained = co_await explain(std::move(done), std::move(path));
    co_return explained;
  }

  // These change nothing.
  Task<std::unique_ptr<File>> open_read(std::string path, Caching caching) override {
    return disk_->open_read(std::move(path), caching);
  }
  Task<std::vector<std::byte>> read_small(std::string path, std::uint64_t bytes_max) override {
    return disk_->read_small(std::move(path), bytes_max);
  }
  Task<void> sync_directory(std::string path) override {
    return disk_->sync_directory(std::move(path));
  }
  Task<std::vector<DirectoryEntry>> list(std::string path) override {
    return disk_->list(std::move(path));
  }
  Task<FileStatus> status(std::string path) override { return disk_->status(std::move(path)); }
  Task<Space> space(std::string path) override { return disk_->space(std::move(path)); }
  Objects* objects(std::string_view path) override { return disk_->objects(path); }

 private:
  template <class T>
  Task<T> explain(Result<T> result, std::string path);
  asio::awaitable<bool> may_change(std::string directory);

  const std::unique_ptr<FileSystem> disk_;
  const std::vector<ConfinedTo> directories_;
};

template <class T>
Task<T> ConfinedFileSystem::explain(Result<T> result, std::string path) {
  if (result || result.error().cause() != std::errc::permission_denied) co_return result;
  const std::string directory = parent_of(display(path));
  const bool has_other_reason = co_await may_change(directory);
  if (has_other_reason) co_return result;
  std::string why = fmt::format("the daemon changes files only below {}", name_all(directories_));
  for (const ConfinedTo& named : directories_) {
    const auto there = co_await disk_->status(join(named.path, "."));
    if (!is_inside(directory, named.path) || (there && is_it(named, *there))) continue;
    why = fmt::format("{} was unmounted or made anew since the daemon began: start it again",
                      named.path);
  }
  const Error& error = result.error();
  co_return fail(error.code(),
                 fmt::format("{}; {} (--confine-to, LIBCKPT_CONFINE_TO)", error.text(), why),
                 error.cause(), error.where());
}

// As the kernel looks for a rule: from the directory up to the root, and out of each mount. Returns
// true if it is not known.
asio::awaitable<bool> ConfinedFileSystem::may_change(std::string directory) {
  std::optional<FileStatus> below;
  for (int depth = 0; depth < depth_max; ++depth) {
    const auto there = co_await disk_->status(join(directory, "."));
    if (!there) co_return true;
    const bool is_named = std::ranges::any_of(
        directories_, [&](const ConfinedTo& named) { return is_it(named, *there); });
    if (is_named) co_return true;
    if (below && below->device == there->device && below->inode == there->inode) co_return false;
    below = *there;
    directory = join(directory, "..");
  }
  co_return true;
}

}  // namespace

std::string name_all(std::span<const ConfinedTo> directories) {
  std::string text;
  for (std::size_t index = 0; index < directories.size(); ++index) {
    if (index > 0) text += index + 1 == directories.size() ? " and " : ", ";
    text += directories[index].path;
  }
  return text;
}

std::unique_ptr<FileSystem> explain_confinement(std::unique_ptr<FileSystem> disk,
                                                std::vector<ConfinedTo> directories) {
  return std::make_unique<ConfinedFileSystem>(std::move(disk), std::move(directories));
}

}  // namespace ckpt::os
