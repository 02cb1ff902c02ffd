#include "format/start.hpp"

#include <map>

#include "base/assert.hpp"
#include "format/agreement_limits.hpp"
#include "format/field_codec.hpp"

namespace ckpt::format {

namespace {

constexpr std::size_t count_bytes = 4;

}  // namespace

auto fields(Is<Start> auto& it) {
  return field_list(
      it.start_id, it.attempt, it.timeline, padded(it.base), it.outcome,
      text(it.reason, text_bytes_max), it.sessions, it.digests, it.holders, it.from_storage,
      enumerator(it.source, SourceChoice::any, SourceChoice::storage), it.newest_seen);
}

namespace {

using Holders = std::vector<std::vector<std::string>>;

class StartEncoder : public FieldWriter<StartEncoder> {
 public:
  using FieldWriter::FieldWriter;
  using FieldWriter::put;

  // The names once, sorted; then the place of each holder among them.
  void put(const Holders& holders) {
    std::map<std::string, std::uint32_t> places;
    for (const auto& nodes : holders) {
      for (const std::string& node : nodes) places.try_emplace(node, 0);
    }
    std::uint32_t count = 0;
    for (auto& [name, place] : places) place = count++;
    out_.list(places, [&](const auto& entry) { out_.string(entry.first); });
    out_.list(holders, [&](const std::vector<std::string>& nodes) {
      out_.list(nodes, [&](const std::string& node) { out_.u32(places.at(node)); });
    });
  }
  // As two fields, of which one at most is not zero.
  void put(const StartOutcome& outcome) {
    put(outcome.is_go());
    out_.u8(static_cast<std::uint8_t>(outcome.error()));
  }
};

class StartDecoder : public FieldReader<StartDecoder> {
 public:
  using FieldReader::FieldReader;
  using FieldReader::take;

  void take(Holders& holders) {
    const auto names =
        in_.list<std::string>(count_bytes, [&] { return in_.string(node_name_bytes_max); });
    holders = in_.list<std::vector<std::string>>(count_bytes, [&] {
      return in_.list<std::string>(sizeof(std::uint32_t), [&] {
        const std::uint32_t place = in_.u32();
        if (place < names.size()) return names[place];
        in_.fail_here("a holder that is no node of the list");
        return std::string();
      });
    });
  }
  void take(Start& start) {
    take_fields(start);
    const bool has_shards = !start.digests.empty() && start.digests.size() == start.holders.size();
    if (start.base && !has_shards) in_.fail_here("a start that names no shard for some rank");
    if (start.newest_seen && !(start.base && *start.newest_seen >= start.base->step))
      in_.fail_here("a start whose newest step seen is before its base");
    if (start.outcome.is_pending() && !start.base)
      in_.fail_here("a start that waits for copies of no step");
  }
  void take(StartOutcome& outcome) {
    bool is_go = false;
    Errc error{};
    take(is_go);
    take(enumerator(error, Errc{}, Errc::version_mismatch));
    if (is_go && error != Errc{}) return in_.fail_here("a start that goes and has failed");
    if (is_go) outcome = StartOutcome::go();
    if (error != Errc{}) outcome = StartOutcome::failed(error);
  }
};

}  // namespace

StartOutcome StartOutcome::failed(Errc error) {
  CKPT_ASSERT(error != Errc{});
  return {State::failed, error};
}

std::vector<std::byte> encode(const Start& start) {
  return StartEncoder::encode(start, RecordKind::start);
}

Result<Start> decode_start(std::span<const std::byte> bytes) {
  return StartDecoder::decode<Start>(bytes, RecordKind::start, "start");
}

struct SharedStart::Content {
  Start start;
  std::shared_ptr<const std::vector<std::byte>> encoded;
};

SharedStart::SharedStart(Start start) {
  auto content = std::make_shared<Content>();
  content->encoded = std::make_shared<const std::vector<std::byte>>(encode(start));
  content->start = std::move(start);
  digest_ = ckpt::digest_of(std::span(*content->encoded));
  content_ = std::move(content);
}

SharedStart SharedStart::unknown(Digest digest) {
  SharedStart start;
  start.digest_ = digest;
  return start;
}

const Start& SharedStart::operator*() const {
  CKPT_ASSERT(is_known());
  return content_->start;
}

std::shared_ptr<const std::vector<std::byte>> SharedStart::encoded() const {
  CKPT_ASSERT(is_known());
  return content_->encoded;
}

}  // namespace ckpt::format
