#include "node/lent_step.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/assert.hpp"
#include "format/run_files.hpp"

namespace ckpt::node {

namespace {

using arena::Slot;

constexpr std::size_t ranks_named_max = 8;

std::vector<std::uint32_t> ranks_missing(const agree::StepCopies& copies) {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < copies.size(); ++rank)
    if (!copies[rank]) ranks.push_back(rank);
  return ranks;
}

std::string names_of(std::vector<std::uint32_t> ranks) {
  const bool are_more = ranks.size() > ranks_named_max;
  if (are_more) ranks.resize(ranks_named_max);
  return fmt::format("{}{}", fmt::join(ranks, ", "), are_more ? ", ..." : "");
}

}  // namespace

Result<std::shared_ptr<LentStep>> LentStep::lend(Parts parts, Known known,
                                                 std::optional<Step> wanted) {
  const JobFacts& facts = parts.facts;
  std::set<format::StepId, std::greater<>> held;
  for (const format::NodeReport& node : known.view.reports)
    for (const format::Holding& holding : node.holdings) held.insert(holding.id.at);
  std::optional<Error> partly;
  for (const format::StepId& at : held) {
    if (facts.is_fenced(at) || (wanted && at.step != *wanted)) continue;
    const agree::StepCopies copies = agree::copies_of_any(known.view, at);
    const std::vector<std::uint32_t> missing = ranks_missing(copies);
    if (missing.empty() && copies.size() > 0) {
      std::shared_ptr<LentStep> step(new LentStep(parts, start_of_held(at, copies)));
      return step;
    }
    if (partly) continue;
    std::string text =
        fmt::format("read step {} of job {} in memory: node {} knows of no copy of rank {}",
                    number(at.step), facts.shape.job, facts.node, names_of(missing));
    if (known.coordinator != facts.node && !known.coordinator.empty())
      text += fmt::format("; node {} knows all copies: run this there", known.coordinator);
    partly.emplace(Errc::unavailable, std::move(text));
  }
  if (partly) return fail(std::move(*partly));
  const std::string what = wanted ? fmt::format("step {}", number(*wanted)) : "any step";
  return fail(Errc::not_found,
              fmt::format("read {} of job {} in memory: it is not there", what, facts.shape.job));
}

LentStep::LentStep(Parts parts, format::Start start)
    : facts_(parts.facts),
      life_(parts.life),
      slots_(parts.slots),
      job_(parts.life.hold()),
      start_(std::move(start)),
      shards_({parts.facts, parts.slots, parts.replication, parts.storage,
               std::make_shared<SharedRecords>(parts.facts.clock())},
              start_) {
  for (const auto& [rank, own] : slots_.all_own()) {
    if (rank >= start_.digests.size()) continue;
    for (const OwnSlot& each : own.slots) {
      const bool is_it = each.slot->state() == Slot::State::sealed && !each.slot->is_retiring() &&
                         each.slot->id() == format::ShardId{*start_.base, rank} &&
                         each.slot->digest() == start_.digests[rank];
      if (is_it) leases_[rank] = std::make_shared<const arena::Lease>(each.slot);
    }
  }
}

wire::control::HeldStep LentStep::description() const {
  wire::control::HeldStep step;
  step.run = facts_.shape.run;
  step.at = *start_.base;
  step.digests = start_.digests;
  step.members = facts_.members;
  for (const Node& node : facts_.shape.nodes) step.nodes.push_back(node.name);
  step.directory = facts_.directory;
  format::Timelines timelines;
  timelines.run = facts_.shape.run;
  timelines.history = facts_.history;
  step.timelines = format::render(timelines);
  return step;
}

bool LentStep::give_way() {
  bool has_given = false;
  for (auto it = leases_.begin(); it != leases_.end();) {
    const Slot& lent = it->second->slot();
    std::uint32_t others = 0;  // Captures can use them: a flush may hold one as well.
    const auto own = slots_.all_own().find(it->first);
    if (own != slots_.all_own().end()) {
      for (const OwnSlot& each : own->second.slots)
        if (each.slot.get() != &lent && !each.slot->is_retiring()) ++others;
    }
    const bool is_needed = lent.is_retiring() && others < arena::own_slots_min;
    // A read that is under way keeps it for a moment more.
    if (is_needed) has_given = true;
    it = is_needed ? leases_.erase(it) : std::next(it);
  }
  return has_given;
}

void LentStep::memory_freed() {
  leases_.clear();
  is_freed_ = true;
}

// Once a newer step is committed, or the job is over, a copy that is not there was not lost.
Error LentStep::explained(Error error) const {
  if (is_freed_)
    return Error(Errc::unavailable,
                 fmt::format("read step {} of job {} in memory: the job has ended or was dropped "
                             "meanwhile, and its memory is free",
                             number(start_.base->step), facts_.shape.job));
  if (!facts_.committed || !(*start_.base < *facts_.committed)) return error;
  return Error(
      Errc::unavailable,
      fmt::format("read step {} of job {} in memory: training has committed step {} "
                  "meanwhile, and has taken the memory; run this again, or take a step "
                  "that is on storage",
                  number(start_.base->step), facts_.shape.job, number(facts_.committed->step)));
}

Task<std::shared_ptr<const format::ShardRecord>> LentStep::record(std::uint32_t rank) {
  const std::shared_ptr<LentStep> self = shared_from_this();
  const JobLife::WorkPass work = life_.begin_work();
  if (rank >= start_.digests.size())
    co_return fail(Errc::invalid_argument,
                   fmt::format("read rank {} of {} in memory", rank, start_.digests.size()));
  if (const auto lease = leases_.find(rank); lease != leases_.end())
    co_return lease->second->shared_record();
  auto found = co_await shards_.whole_record(rank);
  if (!found) co_return fail(explained(std::move(found).error()));
  co_return std::move(*found);
}

Task<std::vector<std::vector<std::byte>>> LentStep::read(std::uint32_t rank,
                                                         std::vector<std::size_t> chunks) {
  const std::shared_ptr<LentStep> self = shared_from_this();
  const JobLife::WorkPass work = life_.begin_work();
  CKPT_CO_TRY(const auto record, co_await this->record(rank));
  const bool are_there = std::ranges::all_of(
      chunks, [&](std::size_t index) { return index < record->chunk_crcs.size(); });
  if (!are_there || chunks.size() > lent_chunks_max || !std::ranges::is_sorted(chunks))
    co_return fail(Errc::invalid_argument, "read chunks in memory: not those of the shard");
  std::vector<std::vector<std::byte>> read(chunks.size());
  std::vector<std::size_t> left;
  for (std::size_t place = 0; place < chunks.size(); ++place) {
    const auto found = leases_.find(rank);
    const SharedLease lease = found == leases_.end() ? nullptr : found->second;
    if (lease == nullptr) {
      left.assign(chunks.begin() + static_cast<std::ptrdiff_t>(place), chunks.end());
      break;
    }
    const format::Extent extent = record->chunk(chunks[place]);
    const std::span<const std::byte> bytes = lease->bytes().subspan(extent.offset, extent.bytes);
    CKPT_CO_TRY(const Crc32 crc, co_await crc32_on(facts_.context.seams.compute, bytes));
    if (crc == record->chunk_crcs[chunks[place]]) {
      read[place].assign(bytes.begin(), bytes.end());
      continue;
    }
    slots_.quarantine(*lease);
    leases_.erase(rank);
    life_.touch();
    left.assign(chunks.begin() + static_cast<std::ptrdiff_t>(place), chunks.end());
    break;
  }
  if (left.empty()) co_return read;
  gather::ChunkSink sink;
  sink.take = [&](std::size_t index, std::span<const std::byte> bytes) {
    const auto at = std::ranges::find(chunks, index) - chunks.begin();
    read[static_cast<std::size_t>(at)].assign(bytes.begin(), bytes.end());
  };
  storage::TransferHooks hooks;
  hooks.compute = facts_.context.seams.compute;
  Status rest = co_await shards_.read(record, std::move(left), std::move(sink), hooks);
  if (!rest) co_return fail(explained(std::move(rest).error()));
  co_return read;
}

}  // namespace ckpt::node
