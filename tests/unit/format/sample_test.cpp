// Goal:   the samples that the other tests draw are as varied as they think.
// Method: draw many and look for the unusual ones.
#include "sample.hpp"

#include <catch2/catch.hpp>
#include <span>

#include "base/units.hpp"
#include "format/sealed_json.hpp"

namespace ckpt::test {

using namespace format;

namespace {

Digest sample_digest(Random& random) {
  const std::uint64_t high = random.next();
  return {high, random.next()};
}

StepId sample_step_id(Random& random) {
  const std::uint64_t timeline = random.below(9);
  return {timeline, Step{random.next()}};
}

std::string sample_text(Random& random) {
  std::string text;
  const std::uint64_t length = random.below(20);
  for (std::uint64_t index = 0; index < length; ++index)
    text += random.one_in(8) ? "\xc3\xa9" : std::string(1, static_cast<char>(random.below(127)));
  return text;
}

template <class MakeOne>
auto sample_list(Random& random, MakeOne make_one) {
  std::vector<decltype(make_one())> values;
  const std::uint64_t size = random.below(4);
  for (std::uint64_t index = 0; index < size; ++index) values.push_back(make_one());
  return values;
}

StartOutcome sample_outcome(Random& random) {
  if (random.one_in(3)) return {};
  if (random.one_in(2)) return StartOutcome::go();
  return StartOutcome::failed(static_cast<Errc>(1 + random.below(9)));
}

Start sample_start(Random& random) {
  Start start;
  start.start_id = random.next();
  start.attempt = random.below(5);
  start.timeline = random.below(9);
  start.outcome = sample_outcome(random);
  if (start.outcome.is_pending() || random.one_in(2)) start.base = sample_step_id(random);
  start.reason = sample_text(random);
  start.sessions = sample_list(random, [&] { return random.next(); });
  start.digests = sample_list(random, [&] { return sample_digest(random); });
  start.holders =
      sample_list(random, [&] { return sample_list(random, [&] { return sample_text(random); }); });
  if (start.base) {
    start.digests.resize(start.sessions.size());
    start.holders.resize(start.sessions.size());
  }
  start.from_storage = random.one_in(2);
  return start;
}

RankReport sample_rank_report(Random& random) {
  RankReport report;
  report.rank = static_cast<std::uint32_t>(random.next());
  report.session = random.next();
  report.phase = static_cast<StartPhase>(random.below(6));
  if (random.one_in(2)) report.wanted = Step{random.next()};
  report.attempt = random.next();
  report.start_id = random.next();
  report.restored_ok = random.one_in(2);
  report.timeline = random.next();
  if (random.one_in(2)) report.last_seen = Step{random.next()};
  report.is_closing = random.one_in(2);
  report.filling = sample_list(random, [&] { return sample_step_id(random); });
  report.failure = sample_text(random);
  return report;
}

Holding sample_holding(Random& random) {
  Holding holding;
  holding.id = {sample_step_id(random), static_cast<std::uint32_t>(random.next())};
  holding.digest = sample_digest(random);
  holding.bytes = random.next();
  holding.world_size = static_cast<std::uint32_t>(random.next());
  holding.is_own = random.one_in(2);
  holding.model = sample_digest(random);
  return holding;
}

FlushReport sample_flush_report(Random& random) {
  FlushReport report;
  report.is_wanted = random.one_in(2);
  report.flush_id = random.next();
  report.done = sample_list(random, [&] {
    ShardFlushed done;
    done.rank = static_cast<std::uint32_t>(random.next());
    done.turn = static_cast<std::uint32_t>(random.next());
    done.digest = sample_digest(random);
    return done;
  });
  report.progress = random.next();
  report.failed = sample_list(random, [&] {
    ShardNotFlushed failed;
    failed.rank = static_cast<std::uint32_t>(random.next());
    failed.turn = static_cast<std::uint32_t>(random.next());
    failed.failure = sample_text(random);
    return failed;
  });
  return report;
}

template <class State>
void fill_history(Random& random, State& state) {
  state.history = sample_list(random, [&] {
    TimelineStart start{random.next(), {}};
    if (random.one_in(2)) start.base = sample_step_id(random);
    return start;
  });
  state.restore_counts = sample_list(random, [&] {
    const StepId at = sample_step_id(random);
    return RestoreCount{at, static_cast<std::uint32_t>(random.next())};
  });
}

}  // namespace

TensorSpec tensor(std::string name, DType dtype, std::vector<std::int64_t> shape,
                  std::string alias_of) {
  return {std::move(name), dtype, std::move(shape), std::move(alias_of)};
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

Layout layout_of(std::vector<TensorSpec> tensors, std::uint64_t blob_capacity, std::uint32_t rank) {
  auto layout = make_layout(tensors, rank, blob_capacity);
  if (!layout) FAIL(layout.error().message());
  return std::move(layout).value();
}

namespace {

// A part that the tensor can be.
Piece sample_piece(Random& random, const TensorSpec& spec) {
  Piece piece;
  piece.copy = static_cast<std::uint32_t>(random.below(3));
  if (spec.shape.size() == 1 && random.one_in(2)) {
    const std::uint64_t before = random.below(100);
    piece.flat_begin = before;
    piece.global_shape = {2, before + static_cast<std::uint64_t>(spec.shape[0])};
    return piece;
  }
  for (std::size_t d = 0; d < spec.shape.size(); ++d) {
    piece.order.push_back(static_cast<std::uint8_t>((d + piece.copy) % spec.shape.size()));
    piece.offset.push_back(random.below(9));
  }
  piece.global_shape = piece.offset;
  for (std::size_t place = 0; place < spec.shape.size(); ++place) {
    std::uint64_t& length = piece.global_shape[piece.order[place]];
    length += static_cast<std::uint64_t>(spec.shape[place]) + random.below(5);
  }
  return piece;
}

}  // namespace

Layout sample_layout(Random& random, std::uint32_t rank) {
  std::vector<TensorSpec> tensors;
  const std::uint64_t count = random.below(8);
  for (std::uint64_t index = 0; index < count; ++index) {
    TensorSpec spec;
    spec.name = "layer." + std::to_string(index) + (random.one_in(4) ? ".\xc3\xa9\"\\" : ".weight");
    spec.dtype = static_cast<DType>(random.below(17));
    const std::uint64_t dimensions = random.below(4);
    for (std::uint64_t dimension = 0; dimension < dimensions; ++dimension)
      spec.shape.push_back(static_cast<std::int64_t>(random.one_in(12) ? 0 : 1 + random.below(24)));
    if (random.one_in(2)) spec.piece = sample_piece(random, spec);
    tensors.push_back(spec);
    if (random.one_in(4)) {
      TensorSpec alias = spec;
      alias.alias_of = spec.name;
      alias.name = "tied." + std::to_string(index);
      tensors.push_back(alias);
    }
  }
  return layout_of(tensors, random.one_in(2) ? 0 : 1 + random.below(9000), rank);
}

ShardRecord sample_record(Random& random, std::uint32_t rank, std::uint32_t world_size) {
  ShardRecord record;
  record.job = "job \"one\"";
  record.run = {1, 2};
  record.id = {{3, Step{900}}, rank};
  record.world_size = world_size;
  record.layout = sample_layout(random, rank);
  record.model = fingerprint(record.layout);
  if (const auto member = blob_member(record.layout)) {
    std::uint64_t offset = record.layout.members[*member].extent.offset;
    record.blob_bytes = random.below(record.layout.blob_capacity + 1);
    const std::uint64_t end = offset + record.blob_bytes;
    for (int index = 0; index < 3 && offset < end; ++index) {
      const std::uint64_t bytes = random.below(end - offset + 1);
      record.blobs.push_back({offset, bytes});
      record.blob_names.push_back("blob." + std::to_string(index));
      offset += bytes;
    }
  }
  record.bytes = covered_bytes(record.layout, record.blob_bytes);
  record.chunk_bytes = page_bytes << random.below(3);
  record.chunk_crcs.resize(div_ceil(record.bytes, record.chunk_bytes));
  for (auto& crc : record.chunk_crcs) crc = static_cast<Crc32>(random.next());
  return record;
}

ShardPart sample_part(Random& random, std::uint32_t rank, std::uint32_t world_size) {
  ShardPart part{sample_record(random, rank, world_size), {}};
  part.member_crcs.resize(part.record.layout.members.size());
  for (auto& crc : part.member_crcs) crc = static_cast<Crc32>(random.next());
  return part;
}

NodeReport sample_report(Random& random) {
  NodeReport report;
  report.job = sample_text(random);
  report.run = sample_digest(random);
  report.node = sample_text(random);
  report.boot = random.next();
  report.sequence = random.next();
  report.incarnation = random.next();
  report.members = sample_digest(random);
  report.world_size = static_cast<std::uint32_t>(random.next());
  report.has_trainer = random.one_in(2);
  report.has_ended = random.one_in(2);
  report.ranks = sample_list(random, [&] { return sample_rank_report(random); });
  report.holdings = sample_list(random, [&] { return sample_holding(random); });
  report.durable = sample_list(random, [&] { return sample_step_id(random); });
  report.damaged = sample_list(random, [&] {
    return Damage{{sample_step_id(random), static_cast<std::uint32_t>(random.next())},
                  random.one_in(2) ? Errc::corruption : Errc::io};
  });
  fill_history(random, report);
  if (random.one_in(2)) report.committed = sample_step_id(random);
  if (random.one_in(2)) report.start = sample_start(random);
  report.flush = sample_flush_report(random);
  return report;
}

Decree sample_decree(Random& random) {
  Decree decree;
  decree.job = sample_text(random);
  decree.run = sample_digest(random);
  decree.coordinator = sample_text(random);
  decree.coordinator_boot = random.next();
  decree.sequence = random.next();
  decree.incarnation = random.next();
  decree.members = sample_digest(random);
  if (random.one_in(2)) decree.committed = sample_step_id(random);
  if (random.one_in(2)) decree.durable = sample_step_id(random);
  decree.dropped = sample_list(random, [&] { return sample_step_id(random); });
  decree.next_capture = Step{random.next()};
  if (random.one_in(2)) decree.start = sample_start(random);
  if (random.one_in(2)) {
    FlushOrder order;
    order.flush_id = random.next();
    order.at = sample_step_id(random);
    order.work_directory = ".step-000000900.t3.00112233aabbccdd";
    order.writers = sample_list(random, [&] {
      return FlushWriter{sample_text(random), static_cast<std::uint32_t>(random.next())};
    });
    decree.flush = order;
  }
  fill_history(random, decree);
  decree.live = sample_list(random, [&] { return LiveNode{sample_text(random), random.next()}; });
  decree.degraded = sample_text(random);
  decree.ended = random.one_in(2);
  decree.has_trainer = random.one_in(2);
  decree.waiting = sample_text(random);
  return decree;
}

PartSeal seal_of(std::span<const std::byte> part) {
  const auto front_bytes = part_front_bytes(part);
  if (!front_bytes) FAIL(front_bytes.error().message());
  return {part.size(), *front_bytes, ckpt::digest_of(part.first(*front_bytes))};
}

std::string resealed(std::string text, std::string_view from, std::string_view to) {
  text.resize(text.rfind("\"digest\""));
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  return format::seal_json(std::move(text));
}

void repair_checksum(std::vector<std::byte>& record) {
  REQUIRE(record.size() >= sizeof(Crc32));
  const std::size_t body = record.size() - sizeof(Crc32);
  const Crc32 crc = crc32(std::span(record).first(body));
  for (std::size_t index = 0; index < sizeof(Crc32); ++index)
    record[body + index] = static_cast<std::byte>((crc >> (8 * index)) & 0xff);
}

TEST_CASE("sample: records with and without blobs, aliases, pieces and zero sizes are drawn",
          "[unit][format]") {
  Random random(1);
  bool has_blobs = false;
  bool has_alias = false;
  bool has_nothing = false;
  bool has_zero_size = false;
  bool has_box = false;
  bool has_order = false;
  bool has_range = false;
  for (int round = 0; round < 200; ++round) {
    const auto record = sample_record(random);
    has_blobs |= !record.blobs.empty();
    has_nothing |= record.layout.tensors.empty();
    for (const auto& place : record.layout.tensors) {
      has_alias |= !place.alias_of.empty();
      has_zero_size |= place.extent.bytes == 0;
      has_box |= place.piece && !place.piece->flat_begin;
      has_order |= place.piece && !place.piece->order.empty();
      has_range |= place.piece && place.piece->flat_begin;
    }
  }
  CHECK(has_blobs);
  CHECK(has_alias);
  CHECK(has_nothing);
  CHECK(has_zero_size);
  CHECK(has_box);
  CHECK(has_order);
  CHECK(has_range);
}

}  // namespace ckpt::test
