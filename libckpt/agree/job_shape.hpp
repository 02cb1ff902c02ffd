// JobShape: the options that all ranks were given alike.
#pragma once

#include <ckpt/options.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "format/ids.hpp"

namespace ckpt::agree {

struct JobShape {
  std::string job;
  format::RunId run;
  std::uint32_t world_size = 1;
  std::uint32_t replicas = 2;
  std::uint64_t incarnation = 0;
  bool has_storage = false;  // A directory was given.
  std::vector<Node> nodes;
  Interval save_mem_interval;
  Interval save_storage_interval;
};

// Equal on nodes that were given the same members.
Digest members_digest(const JobShape& shape);
// The failure domain of a node; its name where none was given.
std::string domain_of(const JobShape& shape, const std::string& node);

}  // namespace ckpt::agree
