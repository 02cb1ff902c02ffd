#include "gather/known_shards.hpp"

#include <algorithm>
#include <numeric>

#include "format/piece.hpp"
#include "storage/parallel.hpp"

namespace ckpt::gather {

namespace {

constexpr std::size_t records_in_flight = 16;  // Each is one small file.

}  // namespace

Task<void> KnownShards::learn(std::size_t rank) {
  Known& known = shards_[rank];
  CKPT_CO_TRY(known.record, co_await source_.whole_record(static_cast<std::uint32_t>(rank)));
  const auto& tensors = known.record->layout.tensors;
  known.by_name.resize(tensors.size());
  std::iota(known.by_name.begin(), known.by_name.end(), 0u);
  std::ranges::sort(known.by_name, {},
                    [&](std::uint32_t place) -> const std::string& { return tensors[place].name; });
  co_return Status();
}

Task<std::shared_ptr<KnownShards>> KnownShards::read(ShardSource& source) {
  const std::shared_ptr<KnownShards> known(new KnownShards(source));
  known->shards_.resize(source.shard_count());
  std::function<Task<void>(std::size_t)> learn = [&](std::size_t rank) {
    return known->learn(rank);
  };
  CKPT_CO_CHECK(co_await storage::for_each_parallel(known->shards_.size(), records_in_flight,
                                                    std::move(learn)));
  co_return known;
}

// Those that are named after their place, unless they are asked for by that name.
void KnownShards::add_parts(const Known& known, const std::string& name,
                            std::span<const std::string> asked, Excerpt& excerpt) {
  const auto& tensors = known.record->layout.tensors;
  const auto name_of = [&](std::uint32_t place) -> const std::string& {
    return tensors[place].name;
  };
  const std::string behind = format::behind_part_names(name);
  auto place = std::ranges::lower_bound(known.by_name, format::first_part_name(name), {}, name_of);
  for (; place != known.by_name.end() && name_of(*place) < behind; ++place) {
    const format::TensorPlace& tensor = tensors[*place];
    const bool is_part = format::tensor_name_of(tensor.name, tensor.piece, tensor.shape) == name;
    if (is_part && !std::ranges::binary_search(asked, tensor.name))
      excerpt.tensors.push_back(tensor);
  }
}

Task<Excerpt> KnownShards::look(std::uint32_t rank, std::vector<std::string> names) {
  const Known& known = shards_.at(rank);
  const auto& tensors = known.record->layout.tensors;
  Excerpt excerpt;
  excerpt.record = known.record;
  for (const std::string& name : names) {
    const auto place = std::ranges::lower_bound(
        known.by_name, name, {},
        [&](std::uint32_t each) -> const std::string& { return tensors[each].name; });
    if (place != known.by_name.end() && tensors[*place].name == name)
      excerpt.tensors.push_back(tensors[*place]);
    add_parts(known, name, names, excerpt);
  }
  co_return excerpt;
}

Task<std::shared_ptr<const format::ShardRecord>> KnownShards::whole_record(std::uint32_t rank) {
  co_return shards_.at(rank).record;
}

Task<void> KnownShards::read(std::shared_ptr<const format::ShardRecord> record,
                             std::vector<std::size_t> chunks, ChunkSink sink,
                             const storage::TransferHooks& hooks) {
  auto done = co_await source_.read(std::move(record), std::move(chunks), std::move(sink), hooks);
  co_return done;
}

}  // namespace ckpt::gather
