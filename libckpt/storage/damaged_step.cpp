#include "storage/damaged_step.hpp"

#include <string>
#include <vector>

#include "format/shard_part.hpp"
#include "storage/part_reader.hpp"

namespace ckpt::storage {

namespace {

// The parts in a step's directory and in the folders of its writers.
Task<std::vector<std::string>> find_parts(os::FileSystem& files, std::string directory) {
  std::vector<std::string> parts;
  std::vector<std::string> folders;
  CKPT_CO_TRY(const auto entries, co_await files.list(directory));
  for (const os::DirectoryEntry& entry : entries) {
    const std::string path = os::join(directory, entry.name);
    if (format::is_part_name(entry.name)) parts.push_back(path);
    if (entry.kind == os::EntryKind::directory) folders.push_back(path);
  }
  for (const std::string& folder : folders) {
    CKPT_CO_TRY(const auto inside, co_await files.list(folder));
    for (const os::DirectoryEntry& entry : inside)
      if (format::is_part_name(entry.name)) parts.push_back(os::join(folder, entry.name));
  }
  co_return parts;
}

}  // namespace

Task<std::optional<format::StepId>> step_of_parts(Site site, Rejected rejected, format::RunId run) {
  const std::optional<Step> step = step_of(rejected);
  if (!step || !is_damage(rejected) || rejected.is_misplaced)
    co_return std::optional<format::StepId>();
  const auto parts = co_await find_parts(site.files(), site.at(rejected.name));
  if (!parts) co_return std::optional<format::StepId>();
  for (const std::string& part : *parts) {
    const auto sealed = co_await read_front(site.files(), part);
    if (!sealed) continue;
    const format::ShardRecord& record = sealed->front.record;
    if (record.id.at.step == *step && record.run == run) co_return std::optional(record.id.at);
  }
  co_return std::optional<format::StepId>();
}

}  // namespace ckpt::storage
