// Each struct names its fields once, in the order of libckpt/docs/format.md.
#include "format/agreement.hpp"

#include <algorithm>

#include "format/agreement_limits.hpp"
#include "format/field_codec.hpp"

namespace ckpt::format {

namespace {

constexpr std::size_t path_bytes_max = 255;
constexpr std::size_t job_name_bytes_max = job_bytes_max;

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

}  // namespace

auto fields(Is<TimelineStart> auto& it) {
  return field_list(it.timeline, padded(it.base));
}
auto fields(Is<RestoreCount> auto& it) {
  return field_list(it.at, it.times);
}
auto fields(Is<Holding> auto& it) {
  return field_list(it.id, it.digest, it.bytes, it.world_size, it.is_own, it.model);
}
auto fields(Is<Damage> auto& it) {
  return field_list(it.id, enumerator(it.code, Errc{}, Errc::version_mismatch));
}
auto fields(Is<RankReport> auto& it) {
  return field_list(it.rank, it.session, enumerator(it.phase, StartPhase::idle, StartPhase::saves),
                    it.wanted, enumerator(it.source, SourceChoice::any, SourceChoice::storage),
                    it.attempt, it.start_id, it.timeline, value_first(it.last_seen), it.restored_ok,
                    it.is_closing, it.filling, text(it.failure, text_bytes_max),
                    enumerator(it.failure_code, Errc{}, Errc::version_mismatch));
}
auto fields(Is<FlushWriter> auto& it) {
  return field_list(text(it.node, node_name_bytes_max), it.turn);
}
auto fields(Is<FlushOrder> auto& it) {
  return field_list(it.flush_id, it.at, text(it.work_directory, path_bytes_max), it.writers);
}
auto fields(Is<ShardFlushed> auto& it) {
  return field_list(it.rank, it.turn, it.digest);
}
auto fields(Is<ShardNotFlushed> auto& it) {
  return field_list(it.rank, it.turn, text(it.failure, text_bytes_max));
}
auto fields(Is<FlushReport> auto& it) {
  return field_list(it.is_wanted, it.flush_id, it.progress, it.done, it.failed);
}
auto fields(Is<LiveNode> auto& it) {
  return field_list(text(it.name, node_name_bytes_max), it.boot);
}
auto fields(Is<NodeReport> auto& it) {
  return field_list(text(it.job, job_name_bytes_max), it.run, text(it.node, node_name_bytes_max),
                    it.boot, it.sequence, it.incarnation, it.members, it.world_size, it.has_trainer,
                    it.has_ended, it.ranks, it.holdings, it.durable, it.damaged, it.history,
                    it.restore_counts, it.committed, it.newest_seen, it.start, it.flush);
}
auto fields(Is<Decree> auto& it) {
  return field_list(text(it.job, job_name_bytes_max), it.run,
                    text(it.coordinator, node_name_bytes_max), it.coordinator_boot, it.sequence,
                    it.incarnation, it.members, it.committed, it.durable, it.dropped,
                    it.next_capture, it.start, it.flush, it.history, it.restore_counts, it.live,
                    it.ended, it.has_trainer, text(it.degraded, text_bytes_max),
                    text(it.lost_part, text_bytes_max), text(it.waiting, text_bytes_max));
}

namespace {

class AgreementEncoder : public FieldWriter<AgreementEncoder> {
 public:
  using FieldWriter::FieldWriter;
  using FieldWriter::put;

  void put(const SharedStart& start) {
    out_.boolean(start.has_value());
    if (start) out_.digest(start.digest());
  }
};

class AgreementDecoder : public FieldReader<AgreementDecoder> {
 public:
  using FieldReader::FieldReader;
  using FieldReader::take;

  void take(SharedStart& start) {
    if (in_.boolean()) start = SharedStart::unknown(in_.digest());
  }
  void take(FlushOrder& order) {
    take_fields(order);
    if (in_.is_good() && !is_safe_relative_path(order.work_directory))
      in_.fail_here("a work directory that is no plain name");
  }
};

}  // namespace

std::vector<std::byte> encode(const NodeReport& report) {
  return AgreementEncoder::encode(report, RecordKind::node_report);
}

std::vector<std::byte> encode(const Decree& decree) {
  return AgreementEncoder::encode(decree, RecordKind::decree);
}

Result<NodeReport> decode_node_report(std::span<const std::byte> bytes) {
  return AgreementDecoder::decode<NodeReport>(bytes, RecordKind::node_report, "node report");
}

Result<Decree> decode_decree(std::span<const std::byte> bytes) {
  return AgreementDecoder::decode<Decree>(bytes, RecordKind::decree, "decree");
}

}  // namespace ckpt::format
