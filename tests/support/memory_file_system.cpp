#include "support/memory_file_system.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/assert.hpp"
#include "base/units.hpp"
#include "os/path.hpp"
#include "os/storage_error.hpp"

namespace ckpt::test {

using os::DirectoryEntry;
using os::EntryKind;
using os::FileStatus;
using os::RenameMode;
using os::storage_failure;

namespace {

constexpr std::uint64_t sector_bytes = 4 * KiB;
constexpr std::uint64_t append_reserve_bytes = 64 * KiB;
constexpr std::size_t log_lines_max = 200'000;

std::string text_of(std::string_view verb, const std::string& path) {
  return std::string(verb) + " " + os::display(path);
}

Result<std::vector<std::string>> components(const std::string& path) {
  CKPT_TRY(const os::SplitPath parts, os::split(path));
  std::vector<std::string> names;
  std::string_view rest = parts.root;
  while (!rest.empty()) {
    const auto slash = rest.find('/');
    const std::string_view name = rest.substr(0, slash);
    rest = slash == std::string_view::npos ? std::string_view() : rest.substr(slash + 1);
    if (name == "..") {  // No link is followed, so the name before is the directory below.
      if (!names.empty()) names.pop_back();
      continue;
    }
    if (!name.empty() && name != ".") names.emplace_back(name);
  }
  names.insert(names.end(), parts.names.begin(), parts.names.end());
  return names;
}

}  // namespace

struct MemoryDisk::Inode {
  EntryKind kind = EntryKind::file;
  std::uint64_t device = 0;
  std::uint64_t mount = 1;
  std::uint64_t number = 0;
  std::int64_t modified_ns = 0;
  std::int64_t changed_ns = 0;
  std::uint32_t owner = 0;  // The last writer.
  std::vector<std::byte> bytes;
  std::vector<std::byte> durable;
  std::set<std::uint64_t> dirty;  // Sectors.
  bool is_size_dirty = false;
  std::uint64_t reserved = 0;
  std::string target;  // A symbolic link's.
  std::map<std::string, Ref> names;
  std::map<std::string, Ref> durable_names;
};

MemoryDisk::MemoryDisk(std::uint64_t seed) : random_(seed) {
  root_ = make_inode(EntryKind::directory);
}

MemoryDisk::Ref MemoryDisk::make_inode(EntryKind kind) {
  auto inode = std::make_shared<Inode>();
  inode->kind = kind;
  inode->number = ++inodes_made_;
  stamp(*inode);
  std::erase_if(inodes_, [](const std::weak_ptr<Inode>& known) { return known.expired(); });
  inodes_.push_back(inode);
  return inode;
}

// Without a clock, each change has a time of its own.
void MemoryDisk::stamp(Inode& inode) {
  if (!has_clock_) ++now_ns_;
  inode.modified_ns = now_ns_;
  inode.changed_ns = now_ns_;
}

void MemoryDisk::fail_at(std::uint64_t operation, Fault fault) {
  fault_at_ = operations_ + operation;
  fault_ = fault;
}

void MemoryDisk::set_hook(std::function<int(std::string_view, const std::string&)> hook) {
  hook_ = std::move(hook);
}

void MemoryDisk::set_time(std::chrono::system_clock::time_point now) {
  using std::chrono::nanoseconds;
  // As Linux: the time of a file is that of the last tick.
  constexpr std::int64_t tick_ns = nanoseconds(std::chrono::milliseconds(4)).count();
  const auto since_1970 = std::chrono::duration_cast<nanoseconds>(now.time_since_epoch()).count();
  has_clock_ = true;
  now_ns_ = since_1970 / tick_ns * tick_ns;
}

void MemoryDisk::set_latency(Duration least, Duration most) {
  latency_least_ = least;
  latency_most_ = most;
}

Status MemoryDisk::begin(std::string_view verb, const std::string& path, bool* is_partial) {
  const std::uint64_t index = operations_++;
  if (log_.size() < log_lines_max) log_.push_back(text_of(verb, path));
  if (hook_) {
    const int error = hook_(verb, os::display(path));
    if (error != 0) return storage_failure(error, text_of(verb, path));
  }
  if (!fault_ || index < *fault_at_) return {};
  const Fault fault = *fault_;
  if (!fault.is_sticky) fault_.reset();
  if (is_partial != nullptr) *is_partial = fault.is_partial;
  read_faults_ += verb == "read" || verb == "open" || verb == "status";
  return storage_failure(fault.error, text_of(verb, path));
}

Result<MemoryDisk::Found> MemoryDisk::find(const std::string& path, std::string_view verb) const {
  CKPT_TRY(const auto names, components(path));
  Found found;
  found.inode = root_;
  for (const std::string& name : names) {
    if (!found.inode) return storage_failure(ENOENT, text_of(verb, path));
    if (found.inode->kind == EntryKind::symlink) return storage_failure(ELOOP, text_of(verb, path));
    if (found.inode->kind != EntryKind::directory) {
      return storage_failure(ENOTDIR, text_of(verb, path));
    }
    found.directory = found.inode;
    found.name = name;
    const auto entry = found.directory->names.find(name);
    found.inode = entry == found.directory->names.end() ? nullptr : entry->second;
  }
  return found;
}

Result<MemoryDisk::Ref> MemoryDisk::find_directory(const std::string& path,
                                                   std::string_view verb) const {
  CKPT_TRY(const Found found, find(path, verb));
  if (!found.inode) return storage_failure(ENOENT, text_of(verb, path));
  if (found.inode->kind == EntryKind::symlink) return storage_failure(ELOOP, text_of(verb, path));
  if (found.inode->kind != EntryKind::directory) {
    return storage_failure(ENOTDIR, text_of(verb, path));
  }
  return found.inode;
}

void MemoryDisk::change(std::uint32_t owner, std::vector<Assignment> assignments) {
  for (const Assignment& one : assignments) {
    stamp(*one.directory);
    if (one.inode) {
      one.directory->names[one.name] = one.inode;
    } else {
      one.directory->names.erase(one.name);
    }
  }
  pending_.push_back(Change{owner, std::move(assignments)});
}

std::uint64_t MemoryDisk::used_bytes() const {
  std::uint64_t used = 0;
  std::vector<Ref> open{root_};
  while (!open.empty()) {
    const Ref directory = open.back();
    open.pop_back();
    for (const auto& [name, inode] : directory->names) {
      const std::uint64_t length = std::max<std::uint64_t>(inode->bytes.size(), inode->reserved);
      used += sector_bytes + align_up(length, sector_bytes);
      open.push_back(inode);
    }
  }
  return used;
}

Status MemoryDisk::need_room(std::uint64_t bytes, const std::string& path) const {
  if (!capacity_ || used_bytes() + bytes <= *capacity_) return {};
  return storage_failure(ENOSPC, text_of("make room for", path));
}

Result<MemoryDisk::Ref> MemoryDisk::create(std::uint32_t owner, const std::string& path) {
  CKPT_CHECK(begin("create", path));
  CKPT_TRY(const Found found, find(path, "create"));
  if (found.inode) return storage_failure(EEXIST, text_of("create", path));
  CKPT_CHECK(need_room(sector_bytes, path));
  const Ref inode = make_inode(EntryKind::file);
  inode->owner = owner;
  change(owner, {Assignment{found.directory, found.name, inode}});
  return inode;
}

Status MemoryDisk::write(Inode& inode, const std::string& path, std::uint64_t offset,
                         std::span<const std::byte> bytes, std::uint32_t owner) {
  bool is_partial = false;
  const Status allowed = begin("write", path, &is_partial);
  if (!allowed && !is_partial) return allowed;
  if (!allowed) bytes = bytes.first(bytes.size() / 2);
  const std::uint64_t end = offset + bytes.size();
  if (!bytes.empty()) {
    const std::uint64_t had = std::max<std::uint64_t>(inode.bytes.size(), inode.reserved);
    if (end > had) {
      CKPT_CHECK(need_room(align_up(end, sector_bytes) - align_up(had, sector_bytes), path));
    }
    put_bytes(inode, offset, bytes);
    bytes_written_ += bytes.size();
    inode.owner = owner;
  }
  return allowed;
}

void MemoryDisk::put_bytes(Inode& inode, std::uint64_t offset, std::span<const std::byte> bytes) {
  const std::uint64_t end = offset + bytes.size();
  if (end > inode.bytes.size()) {
    inode.bytes.resize(end);
    inode.is_size_dirty = true;
  }
  std::memcpy(inode.bytes.data() + offset, bytes.data(), bytes.size());
  for (std::uint64_t sector = offset / torn_bytes_; sector * torn_bytes_ < end; ++sector) {
    inode.dirty.insert(sector);
  }
  stamp(inode);
}

// As XFS: whole blocks, or up to the end of the source.
Status MemoryDisk::clone(Inode& inode, const std::string& path, const os::CloneRange& range,
                         const os::CloneSource& source) {
  const std::string text = text_of("clone", source.path + " to " + os::display(path));
  if (const Status begun = begin("clone", path); !begun)
    return os::clone_failure(begun.error().cause().value(), text);
  if (range.bytes == 0) return {};
  CKPT_TRY(const Found found, find(source.path, "open"));
  if (!found.inode) return storage_failure(ENOENT, text);
  if (found.inode->kind != EntryKind::file) return storage_failure(ELOOP, text);
  const Inode& from = *found.inode;
  if (status_of(from) != source.expected) return fail(Errc::not_found, text + ": another file");
  const std::uint64_t end = range.from + range.bytes;
  const bool is_whole = range.bytes % sector_bytes == 0 || end == from.bytes.size();
  const bool is_aligned = range.from % sector_bytes == 0 && range.to % sector_bytes == 0;
  if (!is_whole || !is_aligned || end > from.bytes.size()) return os::clone_failure(EINVAL, text);
  if (!has_clones_) return os::clone_failure(EOPNOTSUPP, text);
  put_bytes(inode, range.to, std::span(from.bytes).subspan(range.from, range.bytes));
  return {};
}

FileStatus MemoryDisk::status_of(const Inode& inode) {
  FileStatus status;
  status.kind = inode.kind;
  status.bytes = inode.bytes.size();
  status.device = inode.device;
  status.inode = inode.number;
  status.modified_ns = inode.modified_ns;
  status.changed_ns = inode.changed_ns;
  if (inode.kind == EntryKind::directory) status.mount = inode.mount;
  return status;
}

Status MemoryDisk::sync(Inode& inode, const std::string& path) {
  const Status allowed = begin("sync_data", path);
  if (allowed) {
    if (inode.is_size_dirty) inode.durable.resize(inode.bytes.size());
    for (const std::uint64_t sector : inode.dirty) {
      const std::uint64_t start = sector * torn_bytes_;
      const std::uint64_t end = std::min<std::uint64_t>(start + torn_bytes_, inode.bytes.size());
      if (start >= end) continue;
      if (inode.durable.size() < end) inode.durable.resize(end);
      std::memcpy(inode.durable.data() + start, inode.bytes.data() + start, end - start);
    }
  }
  // Failed: the pages count as clean, and nothing will ever write them.
  inode.dirty.clear();
  inode.is_size_dirty = false;
  return allowed;
}

Status MemoryDisk::append(std::uint32_t owner, const std::string& path,
                          std::span<const std::byte> bytes, os::Syncing syncing) {
  CKPT_TRY(const Found found, find(path, "append to"));
  Ref inode = found.inode;
  if (!inode) {
    CKPT_TRY(inode, create(owner, path));
  }
  if (inode->kind == EntryKind::symlink) return storage_failure(ELOOP, text_of("append to", path));
  if (inode->kind != EntryKind::file) return storage_failure(EISDIR, text_of("append to", path));
  CKPT_CHECK(write(*inode, path, inode->bytes.size(), bytes, owner));
  const std::uint64_t reserve = inode->bytes.size() + append_reserve_bytes;
  if (reserve > inode->reserved && need_room(reserve - inode->reserved, path)) {
    inode->reserved = reserve;
  }
  return syncing == os::Syncing::now ? sync(*inode, path) : Status();
}

Status MemoryDisk::rename(std::uint32_t owner, const std::string& from, const std::string& to,
                          RenameMode mode) {
  const std::string text = from + " to " + os::display(to);
  CKPT_CHECK(begin("rename", text));
  CKPT_TRY(const Found source, find(from, "rename"));
  CKPT_TRY(const Found target, find(to, "rename"));
  if (!source.inode) return storage_failure(ENOENT, text_of("rename", text));
  if (mode == RenameMode::exchange) {
    if (!has_exchange_) return storage_failure(EOPNOTSUPP, text_of("rename", text));
    if (!target.inode) return storage_failure(ENOENT, text_of("rename", text));
    change(owner, {Assignment{target.directory, target.name, source.inode},
                   Assignment{source.directory, source.name, target.inode}});
    return {};
  }
  if (target.inode) {
    if (mode == RenameMode::no_replace) return storage_failure(EEXIST, text_of("rename", text));
    const bool source_is_directory = source.inode->kind == EntryKind::directory;
    const bool target_is_directory = target.inode->kind == EntryKind::directory;
    if (target_is_directory && !source_is_directory) {
      return storage_failure(EISDIR, text_of("rename", text));
    }
    if (source_is_directory && !target_is_directory) {
      return storage_failure(ENOTDIR, text_of("rename", text));
    }
    if (!target.inode->names.empty()) return storage_failure(ENOTEMPTY, text_of("rename", text));
  }
  change(owner, {Assignment{target.directory, target.name, source.inode},
                 Assignment{source.directory, source.name, nullptr}});
  return {};
}

Status MemoryDisk::remove(std::uint32_t owner, const std::string& path, bool is_directory) {
  const char* verb = is_directory ? "remove_directory" : "remove_file";
  CKPT_CHECK(begin(verb, path));
  CKPT_TRY(const Found found, find(path, verb));
  if (!found.inode) return storage_failure(ENOENT, text_of(verb, path));
  const bool found_directory = found.inode->kind == EntryKind::directory;
  if (is_directory && !found_directory) return storage_failure(ENOTDIR, text_of(verb, path));
  if (!is_directory && found_directory) return storage_failure(EISDIR, text_of(verb, path));
  if (!found.inode->names.empty()) return storage_failure(ENOTEMPTY, text_of(verb, path));
  change(owner, {Assignment{found.directory, found.name, nullptr}});
  return {};
}

namespace {

template <class Names, class Assignments>
void make_durable(const Assignments& assignments, Names names_of) {
  for (const auto& one : assignments) {
    if (one.inode) {
      names_of(one)[one.name] = one.inode;
    } else {
      names_of(one).erase(one.name);
    }
  }
}

}  // namespace

Status MemoryDisk::sync_directory(const std::string& path) {
  CKPT_CHECK(begin("sync_directory", path));
  CKPT_TRY(const Ref directory, find_directory(path, "sync_directory"));
  std::erase_if(pending_, [&](const Change& pending) {
    const bool touches =
        std::any_of(pending.assignments.begin(), pending.assignments.end(),
                    [&](const Assignment& one) { return one.directory == directory; });
    if (touches) {
      make_durable(pending.assignments,
                   [](const Assignment& one) -> auto& { return one.directory->durable_names; });
    }
    return touches;
  });
  return {};
}

void MemoryDisk::set_torn_bytes(std::uint64_t bytes) {
  CKPT_ASSERT(bytes > 0);
  CKPT_ASSERT(operations_ == 0);  // They count what is dirty.
  torn_bytes_ = bytes;
}

void MemoryDisk::lose_unsynced(Inode& inode, Survival survival) {
  if (inode.kind != EntryKind::file) return;
  if (survival == Survival::everything) {
    inode.durable = inode.bytes;
  } else if (survival == Survival::random) {
    if (inode.is_size_dirty && random_.one_in(2)) inode.durable.resize(inode.bytes.size());
    for (const std::uint64_t sector : inode.dirty) {
      const std::uint64_t start = sector * torn_bytes_;
      const std::uint64_t end =
          std::min<std::uint64_t>({start + torn_bytes_, inode.bytes.size(), inode.durable.size()});
      if (start >= end || random_.one_in(2)) continue;
      std::memcpy(inode.durable.data() + start, inode.bytes.data() + start, end - start);
    }
  }
  inode.bytes = inode.durable;
  inode.dirty.clear();
  inode.is_size_dirty = false;
}

void MemoryDisk::crash(Survival survival, std::optional<std::uint32_t> owner) {
  std::erase_if(pending_, [&](const Change& pending) {
    if (owner && pending.owner != *owner) return false;
    const bool survives =
        survival == Survival::everything || (survival == Survival::random && random_.one_in(2));
    if (survives) {
      make_durable(pending.assignments,
                   [](const Assignment& one) -> auto& { return one.directory->durable_names; });
    }
    return true;
  });
  for (const auto& known : inodes_) {
    const Ref inode = known.lock();
    if (!inode) continue;
    if (!owner || inode->owner == *owner) lose_unsynced(*inode, survival);
    inode->names = inode->durable_names;
  }
  // Unsynced changes of other nodes are still visible.
  for (const Change& pending : pending_) {
    make_durable(pending.assignments,
                 [](const Assignment& one) -> auto& { return one.directory->names; });
  }
}

MemoryDisk::Ref MemoryDisk::put_parents(const std::string& path, std::string& name) {
  const auto names = components(path);
  CKPT_ASSERT(names.has_value());
  CKPT_ASSERT(!names->empty());
  Ref directory = root_;
  for (std::size_t index = 0; index + 1 < names->size(); ++index) {
    Ref& next = directory->names[(*names)[index]];
    if (!next) {
      next = make_inode(EntryKind::directory);
      next->device = directory->device;
      next->mount = directory->mount;
    }
    directory->durable_names[(*names)[index]] = next;
    directory = next;
  }
  name = names->back();
  return directory;
}

void MemoryDisk::put(const std::string& path, std::string_view content) {
  std::string name;
  const Ref directory = put_parents(path, name);
  const Ref inode = make_inode(EntryKind::file);
  const auto bytes = std::as_bytes(std::span(content));
  inode->bytes.assign(bytes.begin(), bytes.end());
  inode->durable = inode->bytes;
  directory->names[name] = inode;
  directory->durable_names[name] = inode;
}

void MemoryDisk::put_link(const std::string& path, const std::string& target) {
  std::string name;
  const Ref directory = put_parents(path, name);
  const Ref inode = make_inode(EntryKind::symlink);
  inode->target = target;
  directory->names[name] = inode;
  directory->durable_names[name] = inode;
}

void MemoryDisk::put_directory(const std::string& path) {
  std::string name;
  (void)put_parents(path + "/x", name);
}

void MemoryDisk::erase(const std::string& path) {
  const auto found = find(path, "erase");
  if (!found || !found->inode) return;
  found->directory->names.erase(found->name);
  found->directory->durable_names.erase(found->name);
}

void MemoryDisk::unmount(const std::string& path, Mounted mounted) {
  std::string name;
  const Ref directory = put_parents(path, name);
  unmounted_[path] = must_find(path);
  const Ref below = make_inode(EntryKind::directory);
  below->device = must_find(path)->device + (mounted == Mounted::device ? 1 : 0);
  below->mount = must_find(path)->mount + 1;
  directory->names[name] = below;
  directory->durable_names[name] = below;
}

void MemoryDisk::mount(const std::string& path) {
  std::string name;
  const Ref directory = put_parents(path, name);
  directory->names[name] = unmounted_.at(path);
  directory->durable_names[name] = unmounted_.at(path);
}

bool MemoryDisk::exists(const std::string& path) const {
  const auto found = find(path, "look for");
  return found && found->inode;
}

std::string MemoryDisk::content(const std::string& path) const {
  const auto found = find(path, "read");
  if (!found || !found->inode) return {};
  const auto& bytes = found->inode->bytes;
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

MemoryDisk::Ref MemoryDisk::must_find(const std::string& path) const {
  const auto found = find(path, "change");
  CKPT_ASSERT(found.has_value());
  CKPT_ASSERT(found->inode != nullptr);
  return found->inode;
}

void MemoryDisk::flip(const std::string& path, std::uint64_t offset, unsigned bit) {
  const Ref inode = must_find(path);
  CKPT_ASSERT(offset < inode->bytes.size());
  inode->bytes[offset] ^= std::byte{1} << bit;
  if (offset < inode->durable.size()) inode->durable[offset] ^= std::byte{1} << bit;
}

void MemoryDisk::resize(const std::string& path, std::uint64_t bytes) {
  const Ref inode = must_find(path);
  inode->bytes.resize(bytes);
  inode->durable.resize(bytes);
  stamp(*inode);
}

std::vector<std::string> MemoryDisk::tree() const {
  std::vector<std::string> paths;
  std::vector<std::pair<std::string, Ref>> open{{"", root_}};
  while (!open.empty()) {
    const auto [path, directory] = open.back();
    open.pop_back();
    for (const auto& [name, inode] : directory->names) {
      const std::string full = path + "/" + name;
      const bool is_directory = inode->kind == EntryKind::directory;
      paths.push_back(is_directory ? full + "/" : full);
      if (is_directory) open.emplace_back(full, inode);
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

class MemoryFile final : public os::File {
 public:
  MemoryFile(MemoryFileSystem& files, MemoryDisk::Ref inode, std::string path, bool is_direct)
      : files_(files), inode_(std::move(inode)), path_(std::move(path)), is_direct_(is_direct) {}

  Task<void> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    std::function<Status()> work = [&files = files_, inode = inode_, path = path_, offset, bytes] {
      return files.disk_.write(*inode, path, offset, bytes, files.owner_);
    };
    Status done = co_await files_.perform<void>(std::move(work));
    co_return done;
  }
  Task<void> read_at(std::uint64_t offset, std::span<std::byte> bytes) override {
    std::function<Status()> work = [&files = files_, inode = inode_, path = path_, offset,
                                    bytes]() -> Status {
      CKPT_CHECK(files.disk_.begin("read", path));
      if (offset + bytes.size() > inode->bytes.size()) {
        return fail(Errc::corruption, text_of("read", path) + ": the file ends too early");
      }
      if (!bytes.empty()) std::memcpy(bytes.data(), inode->bytes.data() + offset, bytes.size());
      return {};
    };
    Status done = co_await files_.perform<void>(std::move(work));
    co_return done;
  }
  Task<void> allocate(std::uint64_t bytes) override {
    std::function<Status()> work = [&files = files_, inode = inode_, path = path_,
                                    bytes]() -> Status {
      CKPT_CHECK(files.disk_.begin("allocate", path));
      if (bytes <= inode->bytes.size()) return {};
      CKPT_CHECK(files.disk_.need_room(bytes - inode->bytes.size(), path));
      inode->bytes.resize(bytes);
      files.disk_.stamp(*inode);
      inode->is_size_dirty = true;
      return {};
    };
    Status done = co_await files_.perform<void>(std::move(work));
    co_return done;
  }
  Task<void> truncate(std::uint64_t bytes) override {
    std::function<Status()> work = [&files = files_, inode = inode_, path = path_,
                                    bytes]() -> Status {
      CKPT_CHECK(files.disk_.begin("truncate", path));
      inode->bytes.resize(bytes);
      files.disk_.stamp(*inode);
      inode->is_size_dirty = true;
      return {};
    };
    Status done = co_await files_.perform<void>(std::move(work));
    co_return done;
  }
  Task<void> clone_at(os::CloneRange range, os::CloneSource source) override {
    std::function<Status()> work = [&files = files_, inode = inode_, path = path_, range,
                                    from = std::move(source)] {
      return files.disk_.clone(*inode, path, range, from);
    };
    Status done = co_await files_.perform<void>(std::move(work));
    co_return done;
  }
  Task<void> sync_data() override {
    if (sync_failed_) co_return fail(Errc::io, text_of("sync", path_) + ": it failed before");
    std::function<Status()> work = [&files = files_, inode = inode_, path = path_] {
      return files.disk_.sync(*inode, path);
    };
    Status done = co_await files_.perform<void>(std::move(work));
    if (!done) sync_failed_ = true;
    co_return done;
  }
  Task<void> close() override {
    std::function<Status()> work = [&files = files_, path = path_] {
      return files.disk_.begin("close", path);
    };
    Status done = co_await files_.perform<void>(std::move(work));
    co_return done;
  }
  bool is_direct() const override { return is_direct_; }

 private:
  MemoryFileSystem& files_;
  MemoryDisk::Ref inode_;
  std::string path_;
  bool is_direct_;
  bool sync_failed_ = false;
};

Task<void> MemoryFileSystem::pause() {
  if (clock_ == nullptr) co_return Status();
  const auto spread =
      static_cast<std::uint64_t>((disk_.latency_most_ - disk_.latency_least_).count());
  const auto extra = Duration(spread == 0 ? 0 : disk_.random_.below(spread + 1));
  const Time end = std::max(
      {clock_->after((disk_.latency_least_ + extra) / 2), disk_.stalled_until_, stalled_until_});
  Status done = co_await sleep_until(*clock_, end);
  co_return done;
}

template <class T>
Task<T> MemoryFileSystem::perform(std::function<Result<T>()> work) {
  CKPT_CO_CHECK(co_await pause());
  if (clock_ != nullptr) disk_.set_time(clock_->wall_time());
  Result<T> result = work();
  CKPT_CO_CHECK(co_await pause());
  co_return result;
}

Task<std::unique_ptr<os::File>> MemoryFileSystem::create(std::string path, os::Caching caching) {
  std::function<Result<MemoryDisk::Ref>()> work = [this, path] {
    return disk_.create(owner_, path);
  };
  CKPT_CO_TRY(auto inode, co_await perform<MemoryDisk::Ref>(std::move(work)));
  const bool is_direct = disk_.is_direct_ && caching == os::Caching::direct;
  co_return std::make_unique<MemoryFile>(*this, std::move(inode), path, is_direct);
}

Task<std::unique_ptr<os::File>> MemoryFileSystem::open_read(std::string path, os::Caching caching) {
  std::function<Result<MemoryDisk::Ref>()> work = [this, path]() -> Result<MemoryDisk::Ref> {
    CKPT_CHECK(disk_.begin("open", path));
    CKPT_TRY(const MemoryDisk::Found found, disk_.find(path, "open"));
    if (!found.inode) return storage_failure(ENOENT, text_of("open", path));
    if (found.inode->kind == EntryKind::symlink) {
      return storage_failure(ELOOP, text_of("open", path));
    }
    if (found.inode->kind != EntryKind::file) return storage_failure(EISDIR, text_of("open", path));
    return found.inode;
  };
  CKPT_CO_TRY(auto inode, co_await perform<MemoryDisk::Ref>(std::move(work)));
  const bool is_direct = disk_.is_direct_ && caching == os::Caching::direct;
  co_return std::make_unique<MemoryFile>(*this, std::move(inode), path, is_direct);
}

Task<std::vector<std::byte>> MemoryFileSystem::read_small(std::string path,
                                                          std::uint64_t bytes_max) {
  using Bytes = std::vector<std::byte>;
  std::function<Result<Bytes>()> work = [this, path, bytes_max]() -> Result<Bytes> {
    CKPT_CHECK(disk_.begin("read", path));
    CKPT_TRY(const MemoryDisk::Found found, disk_.find(path, "read"));
    if (!found.inode) return storage_failure(ENOENT, text_of("read", path));
    if (found.inode->kind == EntryKind::symlink) {
      return storage_failure(ELOOP, text_of("read", path));
    }
    if (found.inode->kind != EntryKind::file) return storage_failure(EISDIR, text_of("read", path));
    if (found.inode->bytes.size() > bytes_max) {
      return fail(Errc::corruption, text_of("read", path) + ": it is larger than the limit");
    }
    return found.inode->bytes;
  };
  auto done = co_await perform<Bytes>(std::move(work));
  co_return done;
}

Task<void> MemoryFileSystem::write_small(std::string path, std::vector<std::byte> bytes) {
  std::function<Status()> work = [this, path, content = std::move(bytes)]() -> Status {
    CKPT_TRY(const auto inode, disk_.create(owner_, path));
    CKPT_CHECK(disk_.write(*inode, path, 0, content, owner_));
    return disk_.sync(*inode, path);
  };
  Status done = co_await perform<void>(std::move(work));
  co_return done;
}

Task<void> MemoryFileSystem::append_small(std::string path, std::vector<std::byte> bytes,
                                          os::Syncing syncing) {
  std::function<Status()> work = [this, path, content = std::move(bytes), syncing] {
    return disk_.append(owner_, path, content, syncing);
  };
  Status done = co_await perform<void>(std::move(work));
  co_return done;
}

Task<void> MemoryFileSystem::make_directory(std::string path) {
  std::function<Status()> work = [this, path]() -> Status {
    CKPT_CHECK(disk_.begin("make_directory", path));
    CKPT_TRY(const MemoryDisk::Found found, disk_.find(path, "make directory"));
    if (found.inode && found.inode->kind == EntryKind::directory) return {};
    if (found.inode) return storage_failure(ENOTDIR, text_of("make directory", path));
    CKPT_CHECK(disk_.need_room(sector_bytes, path));
    const MemoryDisk::Ref made = disk_.make_inode(EntryKind::directory);
    made->device = found.directory->device;
    made->mount = found.directory->mount;
    disk_.change(owner_, {MemoryDisk::Assignment{found.directory, found.name, made}});
    return {};
  };
  Status done = co_await perform<void>(std::move(work));
  co_return done;
}

Task<void> MemoryFileSystem::rename(std::string from, std::string to, RenameMode mode) {
  std::function<Status()> work = [this, from, to, mode] {
    return disk_.rename(owner_, from, to, mode);
  };
  Status done = co_await perform<void>(std::move(work));
  co_return done;
}

Task<void> MemoryFileSystem::remove_file(std::string path) {
  std::function<Status()> work = [this, path] { return disk_.remove(owner_, path, false); };
  Status done = co_await perform<void>(std::move(work));
  co_return done;
}

Task<void> MemoryFileSystem::remove_directory(std::string path) {
  std::function<Status()> work = [this, path] { return disk_.remove(owner_, path, true); };
  Status done = co_await perform<void>(std::move(work));
  co_return done;
}

Task<void> MemoryFileSystem::sync_directory(std::string path) {
  std::function<Status()> work = [this, path] { return disk_.sync_directory(path); };
  Status done = co_await perform<void>(std::move(work));
  co_return done;
}

Task<std::vector<DirectoryEntry>> MemoryFileSystem::list(std::string path) {
  std::function<Result<std::vector<DirectoryEntry>>()> work =
      [this, path]() -> Result<std::vector<DirectoryEntry>> {
    CKPT_CHECK(disk_.begin("list", path));
    CKPT_TRY(const MemoryDisk::Ref directory, disk_.find_directory(path, "list"));
    std::vector<DirectoryEntry> entries;
    for (const auto& [name, inode] : directory->names)
      entries.push_back(DirectoryEntry{name, inode->kind});
    return entries;
  };
  auto done = co_await perform<std::vector<DirectoryEntry>>(std::move(work));
  co_return done;
}

Task<FileStatus> MemoryFileSystem::status(std::string path) {
  std::function<Result<FileStatus>()> work = [this, path]() -> Result<FileStatus> {
    CKPT_CHECK(disk_.begin("status", path));
    CKPT_TRY(const MemoryDisk::Found found, disk_.find(path, "look at"));
    if (!found.inode) return storage_failure(ENOENT, text_of("look at", path));
    return MemoryDisk::status_of(*found.inode);
  };
  auto done = co_await perform<FileStatus>(std::move(work));
  co_return done;
}

Task<os::Space> MemoryFileSystem::space(std::string path) {
  std::function<Result<os::Space>()> work = [this, path]() -> Result<os::Space> {
    CKPT_CHECK(disk_.begin("space", path));
    os::Space space;
    space.bytes_total = disk_.capacity_.value_or(TiB);
    const std::uint64_t used = disk_.used_bytes();
    space.bytes_free = space.bytes_total > used ? space.bytes_total - used : 0;
    return space;
  };
  auto done = co_await perform<os::Space>(std::move(work));
  co_return done;
}

}  // namespace ckpt::test
