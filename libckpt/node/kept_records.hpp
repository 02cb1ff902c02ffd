// KeptRecords: the records of a step's shards that came from other nodes, as many as fit.
//
// Each pass over the shards goes through all of them in the same order. So those that came first
// stay: to replace the oldest would leave none of them for the next pass.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "base/units.hpp"
#include "format/shard_record.hpp"

namespace ckpt::node {

// The records of 16,384 ranks with 1,000 pieces each would take about 8 GB.
inline constexpr std::uint64_t kept_records_bytes_max = 64 * MiB;

// About what it takes in memory.
std::uint64_t memory_of(const format::ShardRecord& record);

// The record without its tensors: what a reader of Chunks needs.
std::shared_ptr<const format::ShardRecord> without_tensors(const format::ShardRecord& record);

class KeptRecords {
 public:
  explicit KeptRecords(std::uint64_t bytes_max = kept_records_bytes_max) : bytes_max_(bytes_max) {}

  // Keeps it if it fits.
  void add(std::shared_ptr<const format::ShardRecord> record);
  // Null: it is not kept.
  std::shared_ptr<const format::ShardRecord> find(std::uint32_t rank) const;
  std::uint64_t bytes() const { return bytes_; }

 private:
  const std::uint64_t bytes_max_;
  std::uint64_t bytes_ = 0;
  std::map<std::uint32_t, std::shared_ptr<const format::ShardRecord>> records_;  // By rank.
};

}  // namespace ckpt::node
