// GoneSteps: notices that stored steps have vanished from a place while the job ran.
//
// Retention and `ckpt gc` never remove the newest step before a newer one is there. So if the
// newest step that this node saw there is missing, and none is newer, somebody has removed or moved
// it, mostly with the whole directory. The next step makes the directory again, and nothing else
// would show what is missing: the node looks before it publishes one.
//
// Threads: the engine's. Lifetime: the StoredPlace's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "node/job_facts.hpp"
#include "storage/catalog.hpp"

namespace ckpt::node {

class GoneSteps {
 public:
  explicit GoneSteps(const JobFacts& facts) : facts_(facts) {}

  // Listing: when one began, among all of the place. One that began before what is known was listed
  // says nothing: steps were stored and removed since.
  using Listing = std::uint64_t;
  Listing begin_listing() { return ++begun_; }
  // `catalog` shows the place before retention removes any of it. A newer step explains that the
  // newest known one is missing: another process collects garbage, or stores steps there, too.
  void look(const storage::Catalog& catalog, Listing listing, const std::string& directory);
  // After retention.
  void remember(const std::vector<storage::Checkpoint>& checkpoints, Listing listing);
  // Others store and remove steps there meanwhile. Listings that are under way may not show it.
  void forget();
  // The newest step that is known to be there; none: nothing is known.
  const std::optional<format::StepId>& newest() const { return newest_; }

  // Says which steps are gone, and since when that is known; for people. Empty: none.
  const std::string& text() const { return text_; }
  // The same, for as long as it counts as trouble: until a newer step is stored, and for a while,
  // so that it is noticed.
  std::string trouble(Time now) const;

 private:
  bool is_newer_there(const storage::Catalog& catalog) const;

  const JobFacts& facts_;
  Listing begun_ = 0;
  Listing known_ = 0;                     // Older listings say nothing new.
  std::optional<format::StepId> newest_;  // The newest that was there.
  std::size_t older_ = 0;                 // How many others were.
  std::string text_;
  Time noticed_at_{};
  std::optional<format::StepId> durable_then_;
};

}  // namespace ckpt::node
