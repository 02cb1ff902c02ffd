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

void SharedRecords::Lines::close_idle() {
  for (const Connection& connection : idle) connection->close();
  idle.clear();
}

SharedRecords::~SharedRecords() {
  for (const auto& [peer, lines] : lines_) lines->close_idle();
}

Task<SharedRecords::Record> SharedRecords::ask_peer(std::string peer, Dial dial, Ask ask) {
  std::shared_ptr<Lines>& found = lines_[peer];
  if (!found) found = std::make_shared<Lines>(clock_);
  const std::shared_ptr<Lines> lines = found;
  const Time deadline = clock_.after(wait_max);
  bool is_late = false;
  while (lines->in_use >= lines_max && !is_late) {
    CKPT_CO_TRY(const bool is_notified, co_await lines->changed.wait_until(deadline));
    is_late = !is_notified;
  }
  ++lines->in_use;
  auto record = co_await ask_over(lines, std::move(dial), std::move(ask));
  CKPT_ASSERT(lines->in_use > 0);
  --lines->in_use;
  lines->changed.notify_all();
  co_return record;
}

Task<SharedRecords::Record> SharedRecords::ask_over(std::shared_ptr<Lines> lines, Dial dial,
                                                    Ask ask) {
  if (!lines->idle.empty()) {
    const Connection used = lines->idle.back();
    lines->idle.pop_back();
    auto record = co_await ask(used);
    if (record) {
      lines->idle.push_back(used);
      co_return record;
    }
    used->close();
    lines->close_idle();  // The peer may have closed them all.
  }
  CKPT_CO_TRY(const Connection fresh, co_await dial());
  auto record = co_await ask(fresh);
  if (record) {
    lines->idle.push_back(fresh);
  } else {
    fresh->close();
  }
  co_return record;
}

}  // namespace ckpt::node
