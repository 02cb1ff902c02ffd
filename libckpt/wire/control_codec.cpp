#include "wire/control_codec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ckpt/version.hpp>

#include "base/assert.hpp"
#include "format/field_codec.hpp"
#include "format/layout_codec.hpp"

namespace ckpt {

// Both are in the public headers, which do not know any encoding.
auto fields(format::Is<Interval> auto& it) {
  return format::field_list(it.steps, it.time);
}
auto fields(format::Is<KeepInterval> auto& it) {
  return format::field_list(it.every, it.until);
}
auto fields(format::Is<Node> auto& it) {
  return format::field_list(it.name, it.failure_domain, it.address);
}

}  // namespace ckpt

namespace ckpt::wire::control {

namespace {

// The limit of an error's text; longer texts are cut.
constexpr std::size_t error_bytes_max = 64 * 1024;

class Encoder : public format::FieldWriter<Encoder> {
 public:
  using FieldWriter::FieldWriter;
  using FieldWriter::put;

  void put(std::chrono::milliseconds value) { put_count(value.count()); }
  void put(std::chrono::nanoseconds value) { put_count(value.count()); }
  void put(const std::vector<std::byte>& value) {
    out_.count(value.size());
    out_.raw(value);
  }
  void put(const format::Layout& value) { format::write(out_, value); }
  void put(const std::shared_ptr<const format::ShardRecord>& value) {
    CKPT_ASSERT(value != nullptr);
    const auto bytes = format::encode(*value);
    out_.count(bytes.size());
    out_.raw(bytes);
  }
  void put(const Status& value) {
    out_.u8(value ? 0 : static_cast<std::uint8_t>(value.error().code()));
    out_.string(value ? std::string_view() : std::string_view(text_of(value.error())));
  }
  // Both numbers are always sent.
  void put(const std::optional<Continuation>& value) {
    const Continuation it = value.value_or(Continuation{});
    put(value.has_value());
    put(it.start_id);
    put(it.timeline);
  }

 private:
  void put_count(std::int64_t value) {
    out_.u64(static_cast<std::uint64_t>(std::max<std::int64_t>(value, 0)));
  }
  // The cause is a number that only the sender's process knows; its text can be sent.
  static std::string text_of(const Error& error) {
    std::string text = error.text();
    if (error.cause()) text += " (" + error.cause().message() + ")";
    if (text.size() > error_bytes_max) text.resize(error_bytes_max);
    return text;
  }
};

class Decoder : public format::FieldReader<Decoder> {
 public:
  using FieldReader::FieldReader;
  using FieldReader::take;

  // Only the limit of the body limits a string.
  void take(std::string& value) { value = in_.string(os::local_body_bytes_max); }
  void take(std::chrono::milliseconds& value) {
    // A hundred years: longer than any interval, and sums of them do not overflow in nanoseconds.
    constexpr std::uint64_t longest = 100ull * 365 * 24 * 3600 * 1000;
    value = std::chrono::milliseconds(std::min(in_.u64(), longest));
  }
  void take(std::chrono::nanoseconds& value) {
    constexpr std::chrono::nanoseconds longest = std::chrono::hours(24 * 365);
    const std::uint64_t most = static_cast<std::uint64_t>(longest.count());
    value = std::chrono::nanoseconds(std::min(in_.u64(), most));
  }
  void take(std::vector<std::byte>& value) {
    const auto bytes = in_.raw(in_.count(1));
    if (in_.is_good()) value.assign(bytes.begin(), bytes.end());
  }
  void take(format::Layout& value) { value = format::read_layout(in_); }
  void take(std::shared_ptr<const format::ShardRecord>& value) {
    const auto bytes = in_.raw(in_.count(1));
    if (!in_.is_good()) return;
    auto record = format::decode_shard_record(bytes);
    if (!record) return in_.fail_here(record.error().text());
    value = std::make_shared<const format::ShardRecord>(std::move(record).value());
  }
  void take(Status& value) {
    const auto code = in_.u8();
    auto text = in_.string(error_bytes_max);
    if (code > static_cast<std::uint8_t>(Errc::version_mismatch))
      return in_.fail_here("an error code that is not in its enumeration");
    if (code != 0) value = fail(static_cast<Errc>(code), std::move(text));
  }
  void take(std::optional<Continuation>& value) {
    const bool is_there = in_.boolean();
    Continuation it;
    take(it.start_id);
    take(it.timeline);
    if (is_there) value = it;
  }
};

template <class Type>
Result<Message> decode_as(std::span<const std::byte> body) {
  Type message;
  format::Reader in(body, Type::kind.name);
  Decoder(in).take(message);
  CKPT_CHECK(in.finish());
  return Message(std::move(message));
}

using DecodeFunction = Result<Message> (*)(std::span<const std::byte>);
constexpr std::size_t kind_count = std::variant_size_v<AnyMessage>;

template <class... Kinds>
constexpr bool are_numbers_without_a_gap(std::variant<Kinds...>*) {
  std::array<bool, kind_count> used{};
  ((used.at(Kinds::kind.number - 1u) = true), ...);
  return std::ranges::count(used, false) == 0;
}
static_assert(are_numbers_without_a_gap(static_cast<AnyMessage*>(nullptr)));

// Indexed by the kind's number minus one.
template <class... Kinds>
constexpr std::array<DecodeFunction, kind_count> decode_functions(std::variant<Kinds...>*) {
  std::array<DecodeFunction, kind_count> functions{};
  ((functions.at(Kinds::kind.number - 1u) = &decode_as<Kinds>), ...);
  return functions;
}
constexpr auto functions = decode_functions(static_cast<AnyMessage*>(nullptr));

}  // namespace

Result<os::LocalMessage> encode(const Message& message) {
  format::Writer out;
  std::visit([&](const auto& it) { Encoder(out).put(it); }, message);
  os::LocalMessage encoded(kind_of(message).number, out.take());
  if (encoded.body.size() > os::local_body_bytes_max) {
    return fail(Errc::exhausted, fmt::format("send {} of {} bytes: at most {}", name_of(message),
                                             encoded.body.size(), os::local_body_bytes_max));
  }
  return encoded;
}

Result<Message> decode(const os::LocalMessage& message) {
  if (message.kind == 0 || message.kind > kind_count)
    return fail(Errc::corruption, fmt::format("a message of unknown kind {}", message.kind));
  CKPT_TRY(auto decoded, functions[message.kind - 1u](message.body));

  std::size_t descriptors = 0;
  if (const auto* segments = std::get_if<SlotSegments>(&decoded))
    descriptors = segments->bytes.size();
  if (descriptors != message.descriptors.size()) {
    return fail(Errc::corruption,
                fmt::format("{} with {} descriptors instead of {}", name_of(decoded),
                            message.descriptors.size(), descriptors));
  }
  if (const auto* failed = std::get_if<SlotsFailed>(&decoded)) {
    if (failed->result) return fail(Errc::corruption, "slots_failed: without an error");
  }
  return decoded;
}

Hello our_hello() {
  Hello hello;
  hello.protocol = local_protocol_version;
  hello.software = CKPT_VERSION_STRING;
  return hello;
}

Status check_hello(const Hello& hello, std::string_view other) {
  const Hello ours = our_hello();
  if (hello.protocol == ours.protocol) return {};
  return fail(
      Errc::version_mismatch,
      fmt::format("{} is libckpt {} (local protocol {}), this is libckpt {} (local protocol {}): "
                  "use one version on both sides; `ckpt stop` of the daemon's version flushes what "
                  "it holds and ends it",
                  other, hello.software, hello.protocol, ours.software, ours.protocol));
}

}  // namespace ckpt::wire::control
