#include "storage/catalog_cache.hpp"

#include "base/assert.hpp"

namespace ckpt::storage {

namespace {

std::uint64_t memory_bytes_of(const Described& described) {
  std::uint64_t bytes = sizeof(Described) + described.checkpoint.digests.size() * sizeof(Digest);
  for (const ListedFile& file : described.files) bytes += sizeof(ListedFile) + file.name.size();
  for (const auto& [name, value] : described.checkpoint.metrics)
    bytes += sizeof(format::Metrics::value_type) + name.size();
  return bytes;
}

// Returns true if a write at `when` or later would give the file another time.
bool is_settled(const os::FileStatus& manifest, CatalogCache::WallTime when) {
  using std::chrono::nanoseconds;
  const nanoseconds changed(std::max(manifest.changed_ns, manifest.modified_ns));
  return when.time_since_epoch() - changed >= CatalogCache::settled_after;
}

}  // namespace

std::shared_ptr<const Described> CatalogCache::find(const std::string& name,
                                                    const os::FileStatus& now) const {
  const auto known = entries_.find(name);
  if (known == entries_.end() || known->second.manifest != now) return nullptr;
  return known->second.described;
}

void CatalogCache::keep(const std::string& name, const os::FileStatus& manifest, WallTime began,
                        std::shared_ptr<const Described> described) {
  CKPT_ASSERT(described != nullptr);
  if (const auto known = entries_.find(name); known != entries_.end()) drop(known);
  if (!is_settled(manifest, began)) return;
  const std::uint64_t bytes = memory_bytes_of(*described);
  while (bytes_ + bytes > bytes_max_) {
    // The catalog reads from old to new: keeping an older one would evict what it needs next time.
    if (entries_.empty() || name < entries_.begin()->first) return;
    drop(entries_.begin());
  }
  CKPT_ASSERT(!entries_.contains(name));
  bytes_ += bytes;
  entries_.emplace(name, Entry{manifest, std::move(described)});
  CKPT_ASSERT(bytes_ <= bytes_max_);
}

void CatalogCache::keep_only(const std::set<std::string>& names) {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    entry = names.contains(entry->first) ? std::next(entry) : drop(entry);
  }
}

CatalogCache::Entries::iterator CatalogCache::drop(Entries::iterator entry) {
  const std::uint64_t bytes = memory_bytes_of(*entry->second.described);
  CKPT_ASSERT(bytes <= bytes_);
  bytes_ -= bytes;
  const auto next = entries_.erase(entry);
  CKPT_ASSERT(!entries_.empty() || bytes_ == 0);
  return next;
}

}  // namespace ckpt::storage
