// StoredPlace: this node's knowledge of one of the job's directories.
//
// Threads: the engine's. Lifetime: the JobStorage's; its coroutines hold the Job.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "format/run_files.hpp"
#include "node/gone_steps.hpp"
#include "node/job_facts.hpp"
#include "storage/catalog.hpp"
#include "storage/catalog_cache.hpp"
#include "storage/retention.hpp"
#include "storage/site.hpp"

namespace ckpt::node {

// LeftDirectory: where a job of the same name had its newest step when it ended at this daemon.
struct LeftDirectory {
  std::string directory;
  Step step{};
};

class StoredPlace {
 public:
  StoredPlace(const JobFacts& facts, std::string directory)
      : facts_(facts), directory_(std::move(directory)), gone_(facts) {}

  const std::string& directory() const { return directory_; }
  storage::Site site() const;
  void set_run(format::RunId run) { run_ = run; }
  // Nothing of it may be used, as long as there is a reason; empty: it may.
  void set_unusable(std::string why);

  // Errors of all: those of storage::read_catalog; invalid_argument (it is unusable).
  Task<storage::Catalog> load(std::optional<Step> only);
  // All that is there now, without a sync of the directory. `load` says which errors.
  Task<storage::Catalog> look();
  Task<format::Timelines> load_timelines();  // Errors: those of storage::load_timelines.
  Task<void> look_up(format::StepId at);     // Knowledge of other steps stays.
  // Before `load` of what `look_for_gone` and `adopt` get.
  GoneSteps::Listing begin_listing() { return gone_.begin_listing(); }
  void adopt(storage::Catalog catalog, GoneSteps::Listing listing);  // A catalog of all steps.
  void forget() { checkpoints_.clear(); }
  // For `ckpt gc`. The rule recorded last is not written again; a failure is logged.
  asio::awaitable<void> record_retention(storage::RetentionRule rule);

  const std::vector<storage::Checkpoint>& checkpoints() const { return checkpoints_; }
  const std::vector<storage::Rejected>& rejected() const { return rejected_; }
  storage::Catalog catalog() const { return {checkpoints_, rejected_}; }
  // Steps that somebody has removed. They are looked for before retention.
  void look_for_gone(const storage::Catalog& catalog, GoneSteps::Listing listing) {
    gone_.look(catalog, listing, directory_);
  }
  // Before a step is published: from then on a newer one explains that the newest is missing.
  asio::awaitable<void> look_for_newest();
  void forget_for_gone() { gone_.forget(); }
  // Before the job's first open: whether that would make the directory. After it: it did.
  Task<bool> is_missing();  // Errors: io.
  void note_made();
  void note_left(LeftDirectory left) { left_ = std::move(left); }  // Where the job was before.
  // For people, where a job finds no checkpoint: why this may be the wrong directory. Empty: there
  // is no reason to think so.
  std::string doubt() const;
  const GoneSteps& gone() const { return gone_; }
  // For people: a server that does not answer now, steps that could not be read, and so stay
  // whatever retention says, steps that are gone.
  std::vector<std::string> troubles(Time now) const;
  std::string name_of(format::StepId at) const;  // Its directory's; empty: unknown.
  // For a step that was published, and is no checkpoint now since files of it are damaged.
  std::string damaged_name_of(format::StepId at) const;
  std::string known_name_of(format::StepId at) const {
    const std::string good = name_of(at);
    return good.empty() ? damaged_name_of(at) : good;
  }

 private:
  std::string unreadable() const;
  storage::CatalogOptions catalog_options();
  void note_rejected(std::vector<storage::Rejected> rejected);
  Task<void> identify(std::vector<storage::Rejected>& rejected);

  const JobFacts& facts_;
  const std::string directory_;
  format::RunId run_;
  std::string unusable_;
  std::string made_at_;  // By this daemon; empty: it was there.
  std::optional<LeftDirectory> left_;
  std::optional<storage::RetentionRule> recorded_;  // None: nothing was, by this daemon.
  storage::CatalogCache cache_;
  std::vector<storage::Checkpoint> checkpoints_;  // All that we know of.
  std::vector<storage::Rejected> rejected_;
  GoneSteps gone_;
};

}  // namespace ckpt::node
