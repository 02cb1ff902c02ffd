#include "storage/latest.hpp"

#include <algorithm>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "storage/run_catalog.hpp"
#include "storage/run_directory.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

namespace {

// Empty: there is none. Errors: invalid_argument (it is none of ours), io.
Task<std::string> read_name(Site site) {
  auto text = co_await read_latest(site);
  if (!text && text.error().code() == Errc::not_found) co_return std::string();
  if (!text) co_return fail(std::move(text).error());
  while (!text->empty() && text->back() == '\n') text->pop_back();
  if (text->empty() || parse_step_directory(*text)) co_return std::move(*text);
  co_return fail(Errc::invalid_argument, "read `latest`: it names no step's directory");
}

// A step that is unread, and not damaged, may be good again at the next look.
bool is_unread_newer_step(const Catalog& catalog, const std::string& name, Step newest) {
  const auto parsed = parse_step_directory(name);
  if (!parsed || parsed->step <= newest) return false;
  return std::ranges::any_of(catalog.rejected, [&](const Rejected& rejected) {
    return rejected.name == name && is_unreadable(rejected);
  });
}

}  // namespace

Task<std::string> read_latest(Site site) {
  constexpr std::uint64_t bytes_max = 4096;
  CKPT_CO_TRY(const auto bytes, co_await site.files().read_small(site.at(latest_name), bytes_max));
  co_return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Task<bool> mend_latest(Site site, format::RunId run, Catalog catalog, std::uint64_t attempt) {
  auto known = co_await read_name(site);
  if (!known && known.error().code() != Errc::io) co_return false;
  if (!known) co_return fail(std::move(known).error());
  const auto marked = co_await mark_abandoned(site, run, catalog);
  if (!marked) co_return false;  // Which is the newest cannot be known.
  const Checkpoint* const newest_checkpoint = newest_living(catalog);
  const std::string newest = newest_checkpoint ? newest_checkpoint->name : std::string();
  CKPT_ASSERT(newest_checkpoint == nullptr || !newest_checkpoint->is_abandoned);
  CKPT_ASSERT(newest_checkpoint == nullptr || parse_step_directory(newest).has_value());
  if (newest == *known) co_return false;
  if (newest_checkpoint && is_unread_newer_step(catalog, *known, newest_checkpoint->at.step))
    co_return false;
  if (newest.empty()) {
    // A step that cannot be read now may be good: only a name that leads nowhere goes.
    const std::string manifest = os::join(site.at(*known), format::manifest_name);
    const auto named = co_await site.files().status(manifest);
    if (named || named.error().code() != Errc::not_found) co_return false;
    CKPT_ASSERT(parse_step_directory(*known).has_value());  // A file of others stays.
    CKPT_CO_CHECK(co_await site.files().remove_file(site.at(latest_name)));
  } else {
    const std::string aside = aside_name("." + std::string(latest_name), attempt);
    CKPT_CO_CHECK(co_await replace_file(site, std::string(latest_name), newest + "\n", aside));
  }
  log_info("storage: {}: `latest` named {}, and names {} now", site.directory(),
           known->empty() ? "nothing" : *known, newest.empty() ? "nothing" : newest);
  co_return true;
}

}  // namespace ckpt::storage
