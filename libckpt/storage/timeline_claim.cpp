#include "storage/timeline_claim.hpp"

#include <fmt/format.h>

#include "base/assert.hpp"
#include "format/run_files.hpp"
#include "storage/run_directory.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

Task<Claimed> claim_timeline(Site site, Claim claim) {
  const std::string name = os::join(private_directory_name, timeline_claim_name(claim.timeline));
  // Else no later timeline would discard it.
  CKPT_ASSERT(parse_timeline_claim(timeline_claim_name(claim.timeline)) == claim.timeline);
  const std::string text = fmt::format("start {:016x}\n", claim.start_id);
  CKPT_ASSERT(text.size() <= format::run_file_bytes_max);  // Else we could not know it as ours.
  CKPT_CO_TRY(const bool is_new,
              co_await create_once(site, name, text, aside_name(timelines_name, claim.attempt)));
  if (is_new) co_return Claimed::now;
  const auto there = co_await site.files().read_small(site.at(name), format::run_file_bytes_max);
  if (!there) co_return Claimed::taken;
  const std::string_view found(reinterpret_cast<const char*>(there->data()), there->size());
  co_return found == text ? Claimed::before : Claimed::taken;
}

Task<void> discard_claims(Site site, std::uint64_t timeline) {
  const std::string directory = site.at(private_directory_name);
  CKPT_CO_TRY(const auto entries, co_await site.files().list(directory));
  for (const os::DirectoryEntry& entry : entries) {
    const auto claimed = parse_timeline_claim(entry.name);
    if (entry.kind != os::EntryKind::file || !claimed || *claimed >= timeline) continue;
    CKPT_ASSERT(*claimed < timeline);  // Its own claim, and later ones, stand.
    const Status removed = co_await site.files().remove_file(os::join(directory, entry.name));
    // Another daemon that begins a timeline removes them too.
    if (!removed && removed.error().code() != Errc::not_found) co_return removed;
  }
  co_return Status();
}

}  // namespace ckpt::storage
