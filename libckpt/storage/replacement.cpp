#include "storage/replacement.hpp"

#include <fmt/format.h>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "format/shard_part.hpp"
#include "os/path.hpp"
#include "storage/attempt.hpp"
#include "storage/copy_packed.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

Replacement::Replacement(os::FileSystem& files, Target target)
    : files_(files), target_(std::move(target)) {
  CKPT_ASSERT(target_.turn != 0);
}

// Files of any turn go: only replacements write files of a rank into a published checkpoint. Two at
// once may take each other's files; then one of them fails, and all bytes in place are good. In a
// bucket, leftovers of a death lie in the folder of the attempt, and go with it.
Task<void> Replacement::begin_rank(format::ManifestShard shard) {
  if (is_in_bucket()) co_return Status();
  const std::string directory = shard_directory(target_.directory, shard);
  CKPT_CO_TRY(const auto entries, co_await files_.list(directory));
  for (const os::DirectoryEntry& entry : entries) {
    const std::string_view stem = without_turn(entry.name);
    const bool is_aside = stem != entry.name && format::is_name_of_rank(stem, shard.rank);
    if (!is_aside || entry.kind != os::EntryKind::file) continue;
    CKPT_CO_CHECK(co_await files_.remove_file(os::join(directory, entry.name)));
  }
  co_return Status();
}

std::string Replacement::add_member(const format::ManifestShard& shard, std::size_t member) {
  const format::StoredFile& stored = shard.files.at(member);
  return add({shard_directory(target_.directory, shard), stored.name, stored, {}});
}

std::string Replacement::add_part(const format::ManifestShard& shard) {
  return add({shard_directory(target_.directory, shard), format::part_name(shard.rank),
              std::nullopt, shard.part});
}

std::string Replacement::add(NewFile file) {
  new_files_.push_back(std::move(file));
  return aside(new_files_.back());
}

std::string Replacement::aside(const NewFile& file) const {
  return path_in_attempt(files_, file.directory, file.name, target_.turn);
}

Task<void> Replacement::put_in_place() {
  for (const NewFile& file : new_files_) {
    CKPT_CO_TRY(const bool is_gone,
                co_await has_gone(files_, target_.directory, target_.seen, target_.compute));
    if (is_gone) {
      co_return fail(Errc::unavailable,
                     fmt::format("replace {}: its job has removed or replaced {} meanwhile",
                                 file.name, os::display(target_.directory)));
    }
    CKPT_CO_CHECK(co_await put_one_in_place(file));
  }
  Status synced = co_await files_.sync_directory(target_.directory);
  co_return synced;
}

Task<void> Replacement::put_one_in_place(NewFile file) {
  if (is_in_bucket()) {
    Status copied = co_await copy_over(std::move(file));
    co_return copied;
  }
  const std::string to = os::join(file.directory, file.name);
  Status renamed = co_await files_.rename(aside(file), to, os::RenameMode::replace);
  co_return renamed;
}

Task<void> Replacement::copy_over(NewFile file) {
  const std::string from = aside(file), to = os::join(file.directory, file.name);
  if (file.stored) {
    const TransferHooks no_hooks;
    Status copied = co_await copy_packed(files_, from, to, *file.stored, no_hooks);
    co_return copied;
  }
  CKPT_CO_TRY(auto bytes, co_await files_.read_small(from, format::part_bytes_max));
  CKPT_CO_CHECK(format::decode_shard_part(bytes, file.seal));
  const os::PutCondition replace(os::PutMode::replace);
  Status put = co_await files_.objects(to)->put_small(to, std::move(bytes), replace);
  co_return put;
}

Task<void> Replacement::clean_up() {
  for (const NewFile& file : new_files_) {
    const std::string path = aside(file);
    const Status removed = co_await files_.remove_file(path);
    if (removed || removed.error().code() == Errc::not_found) continue;
    log_warning("storage: {} is left behind: {}", os::display(path), removed.error().message());
  }
  co_return Status();
}

std::vector<std::string> Replacement::names() const {
  std::vector<std::string> names;
  for (const NewFile& file : new_files_) names.push_back(file.name);
  return names;
}

}  // namespace ckpt::storage
