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

using Names = std::set<std::string, std::less<>>;

// Empty: some rank of the restore is elsewhere, or asks later.
Names asked_by_all(const Ranks& ranks, const format::Start& start) {
  Names asked;
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
  return ranks_here == start.sessions.size() ? asked : Names();
}

void add_unasked(const format::ShardRecord& record, const Names& asked, Names& unasked) {
  for (const format::TensorPlace& tensor : record.layout.tensors) {
    const auto name = format::tensor_name_of(tensor.name, tensor.piece, tensor.shape);
    // Tied: its bytes are asked for.
    if (!asked.contains(name) && !asked.contains(tensor.alias_of)) unasked.emplace(name);
  }
}

}  // namespace

asio::awaitable<void> warn_of_unasked(const JobFacts& facts, const Ranks& ranks,
                                      gather::ShardSource& shards, const format::Start& start) {
  const Names asked = asked_by_all(ranks, start);
  if (asked.empty()) co_return;
  Names unasked;
  for (std::uint32_t shard = 0; shard < shards.shard_count(); ++shard) {
    const auto record = co_await shards.whole_record(shard);
    if (!record) co_return;
    std::function<void()> add = [&] { add_unasked(**record, asked, unasked); };
    const Status added = co_await run_on(facts.context.seams.compute, std::move(add));
    if (!added) co_return;
  }
  if (unasked.empty()) co_return;
  std::vector<std::string_view> listed(unasked.begin(), unasked.end());
  listed.resize(std::min(listed.size(), names_listed_max));
  log_warning(
      "job={} step={}: {} of it is asked for by no rank: \"{}\"{}; the steps that are saved from "
      "now on are without",
      facts.shape.job, number(start.base->step), counted(unasked.size(), "tensor"),
      fmt::join(listed, "\", \""), unasked.size() > listed.size() ? ", ..." : "");
}

}  // namespace ckpt::node
