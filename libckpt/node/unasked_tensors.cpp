#include "node/unasked_tensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <string>

#include "base/compute.hpp"
#include "base/counted.hpp"
#include "base/log.hpp"
#include "format/piece.hpp"

namespace ckpt::node {

namespace {

constexpr std::size_t names_listed_max = 5;

using NameSet = std::set<std::string, std::less<>>;

// Empty: some rank of the restore is elsewhere, or asks later.
NameSet asked_by_all(const Ranks& ranks, const format::Start& start) {
  NameSet asked;
  std::size_t ranks_here = 0;
  for (const auto& [number_of_rank, rank] : ranks) {
    const Session* const session = rank.session.get();
    const bool is_in = session != nullptr && number_of_rank < start.sessions.size() &&
                       start.sessions[number_of_rank] == session->asker;
    if (!is_in) continue;
    if (session->joins_shards || session->restored_layout() == nullptr) return {};
    ++ranks_here;
    for (const format::TensorPlace& tensor : session->restored_layout()->tensors)
      asked.emplace(format::tensor_name_of(tensor.name, tensor.piece, tensor.shape));
  }
  return ranks_here == start.sessions.size() ? asked : NameSet();
}

void add_unasked(const format::ShardRecord& record, const NameSet& asked, NameSet& unasked) {
  for (const format::TensorPlace& tensor : record.layout.tensors) {
    const auto name = format::tensor_name_of(tensor.name, tensor.piece, tensor.shape);
    // Tied: its bytes are asked for.
    if (!asked.contains(name) && !asked.contains(tensor.alias_of)) unasked.emplace(name);
  }
}

// `what`: asked for, or saved.
void warn(const JobFacts& facts, Step restored, const NameSet& names, std::string_view what) {
  std::vector<std::string_view> listed(names.begin(), names.end());
  listed.resize(std::min(listed.size(), names_listed_max));
  log_warning(
      "job={} step={}: {} of it is {} by no rank: \"{}\"{}; the steps that are saved from now on "
      "are without",
      facts.shape.job, number(restored), counted(names.size(), "tensor"), what,
      fmt::join(listed, "\", \""), names.size() > listed.size() ? ", ..." : "");
}

}  // namespace

asio::awaitable<void> warn_of_unasked(const JobFacts& facts, const Ranks& ranks,
                                      gather::ShardSource& shards, const format::Start& start) {
  const NameSet asked = asked_by_all(ranks, start);
  if (asked.empty()) co_return;
  NameSet unasked;
  for (std::uint32_t shard = 0; shard < shards.shard_count(); ++shard) {
    const auto record = co_await shards.whole_record(shard);
    if (!record) co_return;
    std::function<void()> add = [&] { add_unasked(**record, asked, unasked); };
    const Status added = co_await run_on(facts.context.seams.compute, std::move(add));
    if (!added) co_return;
  }
  if (unasked.empty()) co_return;
  warn(facts, start.base->step, unasked, "asked for");
}

bool UnsavedWatch::is_wanted(const format::Start& start) const {
  if (!start.outcome.is_go() || !start.is_of_others()) return false;
  std::size_t ranks_here = 0;
  for (const auto& [number_of_rank, rank] : ranks_) {
    if (rank.session == nullptr) continue;
    if (rank.session->joins_shards) return false;
    ++ranks_here;
  }
  return ranks_here < start.sessions.size();  // Else warn_of_unasked has said it.
}

void UnsavedWatch::update(bool is_coordinator) {
  const auto& start = facts_.decree.start;
  if (!is_coordinator || !start || !start.is_known() || !is_wanted(*start)) {
    restored_.reset();
    return;
  }
  const bool has_newer = facts_.committed && facts_.committed->timeline == start->timeline;
  if (std::exchange(begun_for_, start->start_id) != start->start_id) {
    restored_.reset();
    if (has_newer) return;  // Another node coordinated until now.
    facts_.context.spawn(read_restored(steps_.restored(*start), start->base->step));
  } else if (restored_ && has_newer) {
    OpenShards open = steps_.committed(*facts_.committed);
    if (!open) return;
    facts_.context.spawn(compare(std::move(open), std::move(*restored_)));
    restored_.reset();
  }
}

Task<UnsavedWatch::Names> UnsavedWatch::names_in(
    std::shared_ptr<gather::ShardSource> shards) const {
  Names names;
  for (std::uint32_t shard = 0; shard < shards->shard_count(); ++shard) {
    CKPT_CO_TRY(const auto record, co_await shards->whole_record(shard));
    std::function<void()> add = [&names, record] {
      for (const format::TensorPlace& tensor : record->layout.tensors)
        names.emplace(format::tensor_name_of(tensor.name, tensor.piece, tensor.shape),
                      tensor.alias_of);
    };
    CKPT_CO_CHECK(co_await run_on(facts_.context.seams.compute, std::move(add)));
  }
  co_return names;
}

// Now: its memory goes once a newer step is committed.
asio::awaitable<void> UnsavedWatch::read_restored(OpenShards open, Step step) {
  const JobLife::WorkPass work = life_.begin_work();
  const std::uint64_t start_id = begun_for_;
  auto names = co_await names_in(open());
  if (!names || begun_for_ != start_id) co_return;
  restored_.emplace(step, std::move(*names));
  life_.touch();
}

asio::awaitable<void> UnsavedWatch::compare(OpenShards open, Restored restored) {
  const JobLife::WorkPass work = life_.begin_work();
  const auto saved = co_await names_in(open());
  if (!saved) co_return;
  NameSet unsaved;
  for (const auto& [name, alias_of] : restored.second)
    if (!saved->contains(name) && !saved->contains(alias_of)) unsaved.insert(name);
  if (!unsaved.empty()) warn(facts_, restored.first, unsaved, "saved");
}

}  // namespace ckpt::node
