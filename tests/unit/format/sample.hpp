// Sample: layouts, records, reports and decrees for tests, drawn from a seed.
//
// Threads: any; each call only uses its generator.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/random.hpp"
#include "format/agreement.hpp"
#include "format/shard_part.hpp"

namespace ckpt::test {

format::TensorSpec tensor(std::string name, DType dtype, std::vector<std::int64_t> shape,
                          std::string alias_of = {});
std::vector<std::byte> bytes_of(std::string_view text);

// A layout that must be possible, or the test ends here.
format::Layout layout_of(std::vector<format::TensorSpec> tensors, std::uint64_t blob_capacity = 0,
                         std::uint32_t rank = 0);

format::Layout sample_layout(Random& random, std::uint32_t rank);
// A valid record with invented checksums.
format::ShardRecord sample_record(Random& random, std::uint32_t rank = 0,
                                  std::uint32_t world_size = 1);
format::ShardPart sample_part(Random& random, std::uint32_t rank = 0, std::uint32_t world_size = 1);
format::NodeReport sample_report(Random& random);
format::Decree sample_decree(Random& random);

// The seal that a manifest would have of these bytes.
format::PartSeal seal_of(std::span<const std::byte> part);

// A sealed text of JSON with another body and the digest that fits it.
std::string resealed(std::string text, std::string_view from, std::string_view to);

// Gives a record that was tampered with the checksum of its new bytes.
void repair_checksum(std::vector<std::byte>& record);

}  // namespace ckpt::test
