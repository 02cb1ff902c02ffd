#include "bench/shard.hpp"

#include <cstring>
#include <string>

#include "base/random.hpp"
#include "base/units.hpp"
#include "bench/must.hpp"
#include "format/safetensors_header.hpp"
#include "format/safetensors_image.hpp"

namespace bench {

using namespace ckpt;

namespace {

constexpr std::size_t tensor_bytes = 16 * MiB;

void fill(std::span<std::byte> bytes) {
  Random random(1);
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes.size();
       at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random.next();
    std::memcpy(bytes.data() + at, &word, sizeof word);
  }
}

}  // namespace

Shard::Shard(Loop& loop, std::size_t bytes) {
  std::vector<format::TensorSpec> tensors;
  for (std::size_t at = 0; at < bytes; at += tensor_bytes) {
    format::TensorSpec tensor;
    tensor.name = "tensor." + std::to_string(tensors.size());
    tensor.shape = {static_cast<std::int64_t>(std::min(tensor_bytes, bytes - at))};
    tensors.push_back(std::move(tensor));
  }
  format::ShardRecord made;
  made.job = "bench";
  made.run = {1, 2};
  made.id.at = {1, Step{1}};
  made.layout = must(format::make_layout(tensors, 0, 0));
  made.model = format::fingerprint(made.layout);
  made.bytes = format::covered_bytes(made.layout, 0);
  made.chunk_bytes = default_chunk_bytes;
  memory = must(loop.run(source.allocate(made.layout.slot_bytes)));
  const auto whole = memory->bytes().first(made.bytes);
  fill(whole);
  format::HeaderFacts facts;
  facts.job = made.job;
  facts.run = to_hex(made.run);
  facts.timeline = made.id.at.timeline;
  facts.step = made.id.at.step;
  const auto header = must(format::render_header(made.layout, facts));
  std::memcpy(whole.data(), header.data(), header.size());
  made.chunk_crcs.assign(div_ceil(made.bytes, made.chunk_bytes), 0);
  for (std::size_t index = 0; index < made.chunk_crcs.size(); ++index) {
    const format::Extent chunk = made.chunk(index);
    made.chunk_crcs[index] = crc32(whole.subspan(chunk.offset, chunk.bytes));
  }
  record = std::make_shared<const format::ShardRecord>(std::move(made));
}

void Shard::become_step(std::uint64_t step) {
  auto next = std::make_shared<format::ShardRecord>(*record);
  next->id.at.step = Step{step};
  record = std::move(next);
}

}  // namespace bench
