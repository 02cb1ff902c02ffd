#include "format/agreement.hpp"

#include <algorithm>

#include "format/codec.hpp"

namespace ckpt::format {

namespace {

constexpr std::size_t step_id_bytes = 16;
constexpr std::size_t shard_id_bytes = step_id_bytes + 4;
constexpr std::size_t digest_bytes = 16;
constexpr std::size_t string_bytes_min = 4;
constexpr std::size_t live_node_bytes_min = string_bytes_min + 8;
// The fixed parts: enough to bound what a list's length may make us allocate.
constexpr std::size_t holding_bytes_min = shard_id_bytes + digest_bytes + 8 + 4 + 1 + 8;
constexpr std::size_t rank_report_bytes_min = 4 + 8 + 1 + 1 + 8 + 8 + 8 + 8 + 1 + 1 + 1 + 4 + 4;
constexpr std::size_t damage_bytes = shard_id_bytes + 1;
constexpr std::size_t timeline_start_bytes = 8 + 1 + step_id_bytes;
constexpr std::size_t restore_count_bytes = step_id_bytes + 4;
constexpr std::size_t shard_flushed_bytes = 4 + 4 + digest_bytes;
constexpr std::size_t shard_not_flushed_bytes_min = 4 + 4 + string_bytes_min;
constexpr std::size_t flush_writer_bytes_min = string_bytes_min + 4;

constexpr std::size_t node_name_bytes_max = 256;
constexpr std::size_t text_bytes_max = 64 * 1024;  // Sentences for people.
constexpr std::size_t path_bytes_max = 255;
constexpr std::size_t job_name_bytes_max = job_bytes_max;

void write(Writer& writer, const StepId& at) {
  writer.u64(at.timeline);
  writer.u64(number(at.step));
}

StepId read_step_id(Reader& reader) {
  StepId at;
  at.timeline = reader.u64();
  at.step = Step{reader.u64()};
  return at;
}

void write(Writer& writer, const TimelineStart& start) {
  writer.u64(start.timeline);
  writer.boolean(start.has_base);
  write(writer, start.base);
}

TimelineStart read_timeline_start(Reader& reader) {
  TimelineStart start;
  start.timeline = reader.u64();
  start.has_base = reader.boolean();
  start.base = read_step_id(reader);
  return start;
}

void write(Writer& writer, const RestoreCount& count) {
  write(writer, count.at);
  writer.u32(count.times);
}

RestoreCount read_restore_count(Reader& reader) {
  RestoreCount count;
  count.at = read_step_id(reader);
  count.times = reader.u32();
  return count;
}

void write(Writer& writer, const Holding& holding) {
  write(writer, holding.id.at);
  writer.u32(holding.id.rank);
  writer.digest(holding.digest);
  writer.u64(holding.bytes);
  writer.u32(holding.world_size);
  writer.boolean(holding.is_own);
  writer.u64(holding.manifest_bytes);
}

Holding read_holding(Reader& reader) {
  Holding holding;
  holding.id.at = read_step_id(reader);
  holding.id.rank = reader.u32();
  holding.digest = reader.digest();
  holding.bytes = reader.u64();
  holding.world_size = reader.u32();
  holding.is_own = reader.boolean();
  holding.manifest_bytes = reader.u64();
  return holding;
}

void write(Writer& writer, const Damage& damage) {
  write(writer, damage.id.at);
  writer.u32(damage.id.rank);
  writer.u8(static_cast<std::uint8_t>(damage.code));
}

Damage read_damage(Reader& reader) {
  Damage damage;
  damage.id.at = read_step_id(reader);
  damage.id.rank = reader.u32();
  damage.code = reader.enumerator(Errc{}, Errc::version_mismatch);
  return damage;
}

void write(Writer& writer, const RankReport& report) {
  writer.u32(report.rank);
  writer.u64(report.session);
  writer.u8(static_cast<std::uint8_t>(report.phase));
  writer.optional(report.wanted, [&](Step step) { writer.u64(number(step)); });
  writer.u64(report.attempt);
  writer.u64(report.start_id);
  writer.u64(report.timeline);
  writer.u64(number(report.last_seen));
  writer.boolean(report.has_seen);
  writer.boolean(report.restored_ok);
  writer.boolean(report.is_closing);
  writer.list(report.filling, [&](const StepId& at) { write(writer, at); });
  writer.string(report.failure);
}

RankReport read_rank_report(Reader& reader) {
  RankReport report;
  report.rank = reader.u32();
  report.session = reader.u64();
  report.phase = reader.enumerator(StartPhase::idle, StartPhase::refused);
  report.wanted = reader.optional<Step>([&] { return Step{reader.u64()}; });
  report.attempt = reader.u64();
  report.start_id = reader.u64();
  report.timeline = reader.u64();
  report.last_seen = Step{reader.u64()};
  report.has_seen = reader.boolean();
  report.restored_ok = reader.boolean();
  report.is_closing = reader.boolean();
  report.filling = reader.list<StepId>(step_id_bytes, [&] { return read_step_id(reader); });
  report.failure = reader.string(text_bytes_max);
  return report;
}

void write(Writer& writer, const SharedStart& start) {
  writer.boolean(start.has_value());
  if (start) writer.digest(start.digest());
}

SharedStart read_start(Reader& reader) {
  if (!reader.boolean()) return {};
  return SharedStart::unknown(reader.digest());
}

// Nothing on the wire may lead out of the job's directory: plain names, divided by single slashes.
bool is_safe_relative_path(std::string_view path) {
  if (path.empty() || path.size() > path_bytes_max) return false;
  std::size_t start = 0;
  while (start <= path.size()) {
    const std::size_t end = std::min(path.find('/', start), path.size());
    const auto name = path.substr(start, end - start);
    if (name.empty() || name == "." || name == "..") return false;
    for (const char letter : name) {
      const bool is_plain = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                            (letter >= '0' && letter <= '9') || letter == '-' || letter == '_' ||
                            letter == '.';
      if (!is_plain) return false;
    }
    start = end + 1;
  }
  return true;
}

void write(Writer& writer, const FlushOrder& order) {
  writer.u64(order.flush_id);
  write(writer, order.at);
  writer.string(order.work_directory);
  writer.list(order.writers, [&](const FlushWriter& part) {
    writer.string(part.node);
    writer.u32(part.turn);
  });
}

FlushOrder read_flush_order(Reader& reader) {
  FlushOrder order;
  order.flush_id = reader.u64();
  order.at = read_step_id(reader);
  order.work_directory = reader.string(path_bytes_max);
  if (reader.is_good() && !is_safe_relative_path(order.work_directory))
    reader.fail_here("a work directory that is no plain name");
  order.writers = reader.list<FlushWriter>(flush_writer_bytes_min, [&] {
    FlushWriter part;
    part.node = reader.string(node_name_bytes_max);
    part.turn = reader.u32();
    return part;
  });
  return order;
}

void write(Writer& writer, const FlushReport& report) {
  writer.boolean(report.is_wanted);
  writer.u64(report.flush_id);
  writer.u64(report.progress);
  writer.list(report.done, [&](const ShardFlushed& done) {
    writer.u32(done.rank);
    writer.u32(done.turn);
    writer.digest(done.digest);
  });
  writer.list(report.failed, [&](const ShardNotFlushed& failed) {
    writer.u32(failed.rank);
    writer.u32(failed.turn);
    writer.string(failed.failure);
  });
}

FlushReport read_flush_report(Reader& reader) {
  FlushReport report;
  report.is_wanted = reader.boolean();
  report.flush_id = reader.u64();
  report.progress = reader.u64();
  report.done = reader.list<ShardFlushed>(shard_flushed_bytes, [&] {
    ShardFlushed done;
    done.rank = reader.u32();
    done.turn = reader.u32();
    done.digest = reader.digest();
    return done;
  });
  report.failed = reader.list<ShardNotFlushed>(shard_not_flushed_bytes_min, [&] {
    ShardNotFlushed failed;
    failed.rank = reader.u32();
    failed.turn = reader.u32();
    failed.failure = reader.string(text_bytes_max);
    return failed;
  });
  return report;
}

// The two lists that reports and decrees share.
void write_history(Writer& writer, const std::vector<TimelineStart>& history,
                   const std::vector<RestoreCount>& counts) {
  writer.list(history, [&](const TimelineStart& start) { write(writer, start); });
  writer.list(counts, [&](const RestoreCount& count) { write(writer, count); });
}

template <class State>
void read_history(Reader& reader, State& state) {
  state.history =
      reader.list<TimelineStart>(timeline_start_bytes, [&] { return read_timeline_start(reader); });
  state.restore_counts =
      reader.list<RestoreCount>(restore_count_bytes, [&] { return read_restore_count(reader); });
}

std::vector<StepId> read_step_ids(Reader& reader) {
  return reader.list<StepId>(step_id_bytes, [&] { return read_step_id(reader); });
}

}  // namespace

std::vector<std::byte> encode(const NodeReport& report) {
  Writer writer;
  const auto write_step_id = [&](const StepId& at) { write(writer, at); };
  writer.begin_record(RecordKind::node_report);
  writer.string(report.job);
  writer.digest(report.run);
  writer.string(report.node);
  writer.u64(report.boot);
  writer.u64(report.sequence);
  writer.u64(report.incarnation);
  writer.digest(report.members);
  writer.u32(report.world_size);
  writer.boolean(report.has_trainer);
  writer.boolean(report.has_ended);
  writer.list(report.ranks, [&](const RankReport& rank) { write(writer, rank); });
  writer.list(report.holdings, [&](const Holding& holding) { write(writer, holding); });
  writer.list(report.durable, write_step_id);
  writer.list(report.damaged, [&](const Damage& damage) { write(writer, damage); });
  write_history(writer, report.history, report.restore_counts);
  writer.optional(report.committed, write_step_id);
  write(writer, report.start);
  write(writer, report.flush);
  return writer.end_record();
}

Result<NodeReport> decode_node_report(std::span<const std::byte> bytes) {
  CKPT_TRY(auto reader, Reader::open_record(bytes, RecordKind::node_report, "node report"));
  NodeReport report;
  report.job = reader.string(job_name_bytes_max);
  report.run = reader.digest();
  report.node = reader.string(node_name_bytes_max);
  report.boot = reader.u64();
  report.sequence = reader.u64();
  report.incarnation = reader.u64();
  report.members = reader.digest();
  report.world_size = reader.u32();
  report.has_trainer = reader.boolean();
  report.has_ended = reader.boolean();
  report.ranks =
      reader.list<RankReport>(rank_report_bytes_min, [&] { return read_rank_report(reader); });
  report.holdings = reader.list<Holding>(holding_bytes_min, [&] { return read_holding(reader); });
  report.durable = read_step_ids(reader);
  report.damaged = reader.list<Damage>(damage_bytes, [&] { return read_damage(reader); });
  read_history(reader, report);
  report.committed = reader.optional<StepId>([&] { return read_step_id(reader); });
  report.start = read_start(reader);
  report.flush = read_flush_report(reader);
  CKPT_CHECK(reader.finish());
  return report;
}

std::vector<std::byte> encode(const Decree& decree) {
  Writer writer;
  const auto write_step_id = [&](const StepId& at) { write(writer, at); };
  writer.begin_record(RecordKind::decree);
  writer.string(decree.job);
  writer.digest(decree.run);
  writer.string(decree.coordinator);
  writer.u64(decree.coordinator_boot);
  writer.u64(decree.sequence);
  writer.u64(decree.incarnation);
  writer.digest(decree.members);
  writer.optional(decree.committed, write_step_id);
  writer.optional(decree.durable, write_step_id);
  writer.list(decree.dropped, write_step_id);
  writer.u64(number(decree.next_capture));
  write(writer, decree.start);
  writer.optional(decree.flush, [&](const FlushOrder& order) { write(writer, order); });
  write_history(writer, decree.history, decree.restore_counts);
  writer.list(decree.live, [&](const LiveNode& node) {
    writer.string(node.name);
    writer.u64(node.boot);
  });
  writer.boolean(decree.ended);
  writer.boolean(decree.has_trainer);
  writer.string(decree.degraded);
  writer.string(decree.waiting);
  writer.string(decree.unstorable);
  return writer.end_record();
}

Result<Decree> decode_decree(std::span<const std::byte> bytes) {
  CKPT_TRY(auto reader, Reader::open_record(bytes, RecordKind::decree, "decree"));
  Decree decree;
  decree.job = reader.string(job_name_bytes_max);
  decree.run = reader.digest();
  decree.coordinator = reader.string(node_name_bytes_max);
  decree.coordinator_boot = reader.u64();
  decree.sequence = reader.u64();
  decree.incarnation = reader.u64();
  decree.members = reader.digest();
  decree.committed = reader.optional<StepId>([&] { return read_step_id(reader); });
  decree.durable = reader.optional<StepId>([&] { return read_step_id(reader); });
  decree.dropped = read_step_ids(reader);
  decree.next_capture = Step{reader.u64()};
  decree.start = read_start(reader);
  decree.flush = reader.optional<FlushOrder>([&] { return read_flush_order(reader); });
  read_history(reader, decree);
  decree.live = reader.list<LiveNode>(live_node_bytes_min, [&] {
    LiveNode node;
    node.name = reader.string(node_name_bytes_max);
    node.boot = reader.u64();
    return node;
  });
  decree.ended = reader.boolean();
  decree.has_trainer = reader.boolean();
  decree.degraded = reader.string(text_bytes_max);
  decree.waiting = reader.string(text_bytes_max);
  decree.unstorable = reader.string(text_bytes_max);
  CKPT_CHECK(reader.finish());
  return decree;
}

}  // namespace ckpt::format
