#include "format/start.hpp"

#include <algorithm>
#include <map>

#include "base/assert.hpp"
#include "format/codec.hpp"

namespace ckpt::format {

namespace {

constexpr std::size_t digest_bytes = 16;
constexpr std::size_t count_bytes = 4;
constexpr std::size_t node_name_bytes_max = 256;
constexpr std::size_t text_bytes_max = 64 * 1024;

using Holders = std::vector<std::vector<std::string>>;

// The names once, sorted; then the place of each holder among them.
void write_holders(Writer& writer, const Holders& holders) {
  std::map<std::string, std::uint32_t> places;
  for (const auto& nodes : holders) {
    for (const std::string& node : nodes) places.try_emplace(node, 0);
  }
  std::uint32_t count = 0;
  for (auto& [name, place] : places) place = count++;
  writer.list(places, [&](const auto& entry) { writer.string(entry.first); });
  writer.list(holders, [&](const std::vector<std::string>& nodes) {
    writer.list(nodes, [&](const std::string& node) { writer.u32(places.at(node)); });
  });
}

Holders read_holders(Reader& reader) {
  const auto names =
      reader.list<std::string>(count_bytes, [&] { return reader.string(node_name_bytes_max); });
  return reader.list<std::vector<std::string>>(count_bytes, [&] {
    return reader.list<std::string>(sizeof(std::uint32_t), [&] {
      const std::uint32_t place = reader.u32();
      if (place < names.size()) return names[place];
      reader.fail_here("a holder that is no node of the list");
      return std::string();
    });
  });
}

}  // namespace

std::vector<std::byte> encode(const Start& start) {
  Writer writer;
  writer.begin_record(RecordKind::start);
  writer.u64(start.start_id);
  writer.u64(start.attempt);
  writer.u64(start.timeline);
  writer.boolean(start.has_base);
  writer.u64(start.base.timeline);
  writer.u64(number(start.base.step));
  writer.boolean(start.go);
  writer.u8(static_cast<std::uint8_t>(start.error));
  writer.string(start.reason);
  writer.list(start.sessions, [&](std::uint64_t session) { writer.u64(session); });
  writer.list(start.digests, [&](const Digest& digest) { writer.digest(digest); });
  write_holders(writer, start.holders);
  writer.boolean(start.from_storage);
  return writer.end_record();
}

Result<Start> decode_start(std::span<const std::byte> bytes) {
  CKPT_TRY(auto reader, Reader::open_record(bytes, RecordKind::start, "start"));
  Start start;
  start.start_id = reader.u64();
  start.attempt = reader.u64();
  start.timeline = reader.u64();
  start.has_base = reader.boolean();
  start.base.timeline = reader.u64();
  start.base.step = Step{reader.u64()};
  start.go = reader.boolean();
  start.error = reader.enumerator(Errc{}, Errc::version_mismatch);
  start.reason = reader.string(text_bytes_max);
  start.sessions = reader.list<std::uint64_t>(sizeof(std::uint64_t), [&] { return reader.u64(); });
  start.digests = reader.list<Digest>(digest_bytes, [&] { return reader.digest(); });
  start.holders = read_holders(reader);
  start.from_storage = reader.boolean();
  CKPT_CHECK(reader.finish());
  return start;
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
