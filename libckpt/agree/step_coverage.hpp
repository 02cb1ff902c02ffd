// StepCoverage: which shards of a step can be had, from memory or from storage, and why others
// cannot.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "agree/cluster_view.hpp"

namespace ckpt::agree {

struct Coverage {
  std::uint32_t saved_by = 0;  // The number of ranks that made it.
  bool is_of_others = false;   // Another one than the job's.
  std::vector<Digest> digests;
  std::vector<std::vector<std::string>> holders;
  std::vector<std::uint32_t> missing;  // Ranks.
  std::string damage;                  // The first damage of their files; empty: none.
  bool is_unreadable = false;          // Nothing but failed reads is the reason: it may be good.
  bool is_in_memory = true;
  // Nodes that alone hold some rank's shard in memory; true: storage does not have it either.
  std::map<std::string, bool> alone;
};

// `saved_by`: the number of ranks that made it, the job's or another one. Each shard is in memory,
// or storage has it of this very step: by the same ranks, in the same timeline.
Coverage cover(const ClusterView& view, const DamagedShards& damaged, format::StepId at,
               std::uint32_t saved_by);
// Whether another node holds a shard of it.
bool is_held_beside(const Coverage& coverage, const std::string& node);

}  // namespace ckpt::agree
