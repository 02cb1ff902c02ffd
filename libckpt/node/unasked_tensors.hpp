// UnaskedTensors: warns of tensors of a restored step that no rank asked for, since the steps that
// are saved from then on are without them.
//
// It is known where one node has all ranks. Adapters that choose their targets late report it
// themselves.
//
// Threads: the engine's; names are compared on the Compute.
#pragma once

#include "format/start.hpp"
#include "gather/shard_source.hpp"
#include "node/job_facts.hpp"
#include "node/ranks.hpp"

namespace ckpt::node {

// Rank 0 of the restore calls it. Reads the records of all shards; one that cannot be read ends it
// without a warning.
asio::awaitable<void> warn_of_unasked(const JobFacts& facts, const Ranks& ranks,
                                      gather::ShardSource& shards, const format::Start& start);

}  // namespace ckpt::node
