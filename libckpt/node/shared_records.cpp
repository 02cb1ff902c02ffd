#include "node/shared_records.hpp"

#include "base/assert.hpp"

namespace ckpt::node {

namespace {

// A reader that others wait for may hang on a peer or on storage. Then they try by themselves.
constexpr Duration wait_max = std::chrono::seconds(15);

}  // namespace

Task<SharedRecords::Record> SharedRecords::find_or_fetch(std::uint32_t rank, Fetch fetch) {
  if (Record kept = kept_.find(rank)) co_return kept;
  if (const auto other = coming_.find(rank); other != coming_.end()) {
    const std::shared_ptr<Coming> coming = other->second;
    CKPT_CO_TRY(const bool is_over, co_await coming->over.wait_until(clock_.after(wait_max)));
    if (is_over && *coming->result) co_return **coming->result;
    if (is_over) co_return fail(Error(coming->result->error()));
  }
  const auto coming = std::make_shared<Coming>(clock_);
  coming_[rank] = coming;
  Result<Record> record = co_await fetch(rank);
  if (record) {
    CKPT_ASSERT((*record)->id.rank == rank);
    kept_.add(*record);
  }
  // Also where nothing is kept: those that wait have it from here.
  if (record) {
    coming->result.emplace(*record);
  } else {
    coming->result.emplace(fail(Error(record.error())));
  }
  const auto entry = coming_.find(rank);
  if (entry != coming_.end() && entry->second == coming) coming_.erase(entry);
  coming->over.notify_all();
  co_return record;
}

}  // namespace ckpt::node
