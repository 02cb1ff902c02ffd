// StorageLook: what a job's places hold at this moment, for tools that say what a restore would
// find.
//
// It changes nothing that the job knows: a look from outside must not give up steps in memory. One
// look at a place is under way at a time, so that storage that hangs holds one call and no more.
//
// Threads: the engine's. Lifetime: the Job's; its coroutines hold it.
#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "agree/cluster_view.hpp"
#include "agree/timelines.hpp"
#include "base/signal.hpp"
#include "node/job_facts.hpp"
#include "node/job_life.hpp"
#include "node/stored_place.hpp"

namespace ckpt::node {

struct StorageSeen {
  struct Place {
    std::string directory;
    std::string trouble;  // Why it was not reached; empty: it was.
    std::optional<format::StepId> newest;
  };
  std::vector<Place> places;
  agree::History history;                       // As it is recorded there, and as the job knows it.
  std::vector<agree::PublishedStep> published;  // Those that were abandoned, too.
  std::size_t damaged = 0;
  std::size_t misplaced = 0;                     // Among these.
  std::optional<format::StepId> durable_before;  // The job's, when the look began.

  std::string trouble() const;  // In all places; empty: all were reached.
  std::optional<format::StepId> newest() const;
  void add(const storage::Catalog& catalog, Place& place);
};

class StorageLook {
 public:
  StorageLook(const JobFacts& facts, JobLife& life, std::deque<StoredPlace>& places)
      : facts_(facts), life_(life), places_(places), ended_(facts.clock()) {}

  void begin();
  // Until all places have answered, or the deadline. Errors: cancelled.
  Task<void> wait(Time deadline);
  void stop() { ended_.close(); }
  // The findings of the look that ended just now; none: there was none.
  std::optional<StorageSeen> just_seen() const;

 private:
  struct Contents {
    format::Timelines timelines;
    storage::Catalog catalog;
  };
  struct Look {  // At one place.
    bool is_under_way = false;
    Result<Contents> found = Contents();  // By the one before.
  };
  asio::awaitable<void> run(std::size_t index);
  Task<Contents> read(std::size_t index);
  bool is_under_way() const { return std::ranges::any_of(looks_, &Look::is_under_way); }

  const JobFacts& facts_;
  JobLife& life_;
  std::deque<StoredPlace>& places_;
  Signal ended_;            // Some look.
  std::deque<Look> looks_;  // By place.
  std::optional<format::StepId> durable_before_;
  std::optional<Time> seen_at_;
};

}  // namespace ckpt::node
