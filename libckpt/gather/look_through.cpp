#include "gather/look_through.hpp"

#include <functional>
#include <utility>
#include <vector>

#include "gather/known_shards.hpp"
#include "gather/stored_shards.hpp"
#include "storage/publish_order.hpp"

namespace ckpt::gather {

namespace {

// Planning takes some microseconds for each.
constexpr std::size_t tensors_worth_a_thread = 256;

}  // namespace

Task<LookedThrough> look_through(ShardSource& shards, Compute* compute) {
  CKPT_CO_TRY(const auto known, co_await KnownShards::read(shards));
  LookedThrough looked;
  std::vector<Digest> models;
  std::size_t tensors = 0;
  for (std::uint32_t rank = 0; rank < known->shard_count(); ++rank) {
    models.push_back(known->record(rank).model);
    tensors += known->record(rank).layout.tensors.size();
  }
  std::function<void()> find = [&] { looked.missing = find_missing(list_tensors(*known)); };
  if (tensors < tensors_worth_a_thread) {
    find();
  } else {
    CKPT_CO_CHECK(co_await run_on(compute, std::move(find)));
  }
  looked.layouts = storage::digest_of_layouts(models);
  co_return looked;
}

Task<LookedThrough> look_through(storage::OpenStep step, Compute* compute) {
  StoredShards shards(step);
  auto looked = co_await look_through(shards, compute);
  co_return looked;
}

}  // namespace ckpt::gather
