// Each message names its fields once, in the order of libckpt/docs/protocol.md; the Encoder and the
// Decoder both walk that list, so that the two cannot differ.
#include "wire/control_codec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ckpt/version.hpp>
#include <tuple>

#include "base/assert.hpp"
#include "format/layout_codec.hpp"

namespace ckpt::wire::control {

namespace {

// Of an error's text; longer ones are cut.
constexpr std::size_t error_bytes_max = 64 * 1024;

using format::Is;

auto fields(Is<Interval> auto& it) {
  return std::tie(it.steps, it.time);
}
auto fields(Is<Node> auto& it) {
  return std::tie(it.name, it.failure_domain, it.address);
}

auto fields(Is<Hello> auto& it) {
  return std::tie(it.protocol, it.software);
}
auto fields(Is<Attach> auto& it) {
  return std::tie(it.start_time, it.job, it.dir, it.rank, it.world_size, it.nodes, it.node,
                  it.incarnation, it.save_mem_interval, it.save_storage_interval, it.max_ckpt_num,
                  it.replicas, it.own_slots, it.flush_rate, it.replica_rate, it.secret_file,
                  it.has_continuation, it.start_id, it.timeline);
}
auto fields(Is<SetLayout> auto& it) {
  return std::tie(it.layout);
}
auto fields(Is<Begin> auto& it) {
  return std::tie(it.slot, it.generation, it.step);
}
auto fields(Is<FilledSlot> auto& it) {
  return std::tie(it.slot, it.generation, it.step, it.layout_version, it.blob_bytes, it.blobs,
                  it.blob_names, it.chunk_bytes, it.chunk_crcs);
}
auto fields(Is<Abandon> auto& it) {
  return std::tie(it.slot, it.generation);
}
auto fields(Is<Arrived> auto& it) {
  return std::tie(it.slot, it.generation, it.bytes);
}
auto fields(Is<Flush> auto& it) {
  return std::tie(it.step);
}
auto fields(Is<Notice> auto& it) {
  return std::tie(it.waiting, it.degraded, it.unstorable);
}
auto fields(Is<Filling> auto& it) {
  return std::tie(it.bytes, it.bytes_total, it.source_name);
}
auto fields(Is<StepTime> auto& it) {
  return std::tie(it.steps, it.time, it.during_capture);
}
auto fields(Is<Skipped> auto& it) {
  return std::tie(it.step);
}
auto fields(Is<StartFresh> auto& it) {
  return std::tie(it.ask);
}
auto fields(Is<AskRestore> auto& it) {
  return std::tie(it.ask, it.wanted);
}
auto fields(Is<RestoreResult> auto& it) {
  return std::tie(it.offer, it.result);
}
auto fields(Is<RestoredOk> auto& it) {
  return std::tie(it.step);
}
auto fields(Is<Close> auto& it) {
  return std::tie(it.deadline);
}
auto fields(Is<Goodbye> auto&) {
  return std::tuple<>();
}
auto fields(Is<AttachAnswer> auto& it) {
  return std::tie(it.result, it.session, it.run);
}
auto fields(Is<SlotSegments> auto& it) {
  return std::tie(it.slot, it.generation, it.capacity, it.first, it.count_of_all, it.bytes);
}
auto fields(Is<SlotsReady> auto& it) {
  return std::tie(it.count);
}
auto fields(Is<SlotsFailed> auto& it) {
  return std::tie(it.result);
}
auto fields(Is<Granted> auto& it) {
  return std::tie(it.slot);
}
auto fields(Is<NextCapture> auto& it) {
  return std::tie(it.step);
}
auto fields(Is<LevelReached> auto& it) {
  return std::tie(it.step, it.level);
}
auto fields(Is<StepDropped> auto& it) {
  return std::tie(it.step);
}
auto fields(Is<Offer> auto& it) {
  return std::tie(it.ask, it.offer, it.slot, it.source, it.source_name, it.record);
}
auto fields(Is<Begun> auto& it) {
  return std::tie(it.ask, it.start_id, it.timeline, it.restored, it.result, it.reason);
}
auto fields(Is<Closed> auto& it) {
  return std::tie(it.result);
}
auto fields(Is<Fenced> auto& it) {
  return std::tie(it.reason);
}
auto fields(Is<AskStatus> auto&) {
  return std::tuple<>();
}
auto fields(Is<AskRecover> auto& it) {
  return std::tie(it.job);
}
auto fields(Is<Stop> auto& it) {
  return std::tie(it.deadline, it.flush);
}
auto fields(Is<Drop> auto& it) {
  return std::tie(it.job);
}
auto fields(Is<Answer> auto& it) {
  return std::tie(it.result, it.json);
}

class Encoder {
 public:
  format::Writer& out() { return out_; }

  void put(bool value) { out_.boolean(value); }
  void put(std::uint32_t value) { out_.u32(value); }
  void put(std::uint64_t value) { out_.u64(value); }
  void put(const std::string& value) { out_.string(value); }
  void put(const Digest& value) { out_.digest(value); }
  void put(Step value) { out_.u64(number(value)); }
  void put(Level value) { out_.u8(static_cast<std::uint8_t>(value)); }
  void put(RestoreSource value) { out_.u8(static_cast<std::uint8_t>(value)); }
  void put(std::chrono::milliseconds value) {
    out_.u64(static_cast<std::uint64_t>(std::max<std::int64_t>(value.count(), 0)));
  }
  void put(std::chrono::nanoseconds value) {
    out_.u64(static_cast<std::uint64_t>(std::max<std::int64_t>(value.count(), 0)));
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
  template <class T>
  void put(const std::vector<T>& values) {
    out_.list(values, [this](const T& value) { put(value); });
  }
  template <class T>
  void put(const std::optional<T>& value) {
    out_.optional(value, [this](const T& it) { put(it); });
  }
  template <class Struct>
    requires requires(const Struct& it) { fields(it); }
  void put(const Struct& it) {
    std::apply([this](const auto&... field) { (this->put(field), ...); }, fields(it));
  }

 private:
  // The cause is a number of the sender's process; its text is what can travel.
  static std::string text_of(const Error& error) {
    std::string text = error.text();
    if (error.cause()) text += " (" + error.cause().message() + ")";
    if (text.size() > error_bytes_max) text.resize(error_bytes_max);
    return text;
  }

  format::Writer out_;
};

class Decoder {
 public:
  Decoder(std::span<const std::byte> body, std::string_view what) : in_(body, what) {}
  Status finish() { return in_.finish(); }

  void take(bool& value) { value = in_.boolean(); }
  void take(std::uint32_t& value) { value = in_.u32(); }
  void take(std::uint64_t& value) { value = in_.u64(); }
  // A string's only limit is that of the body around it.
  void take(std::string& value) { value = in_.string(os::local_body_bytes_max); }
  void take(Digest& value) { value = in_.digest(); }
  void take(Step& value) { value = Step{in_.u64()}; }
  void take(Level& value) { value = in_.enumerator(Level::captured, Level::durable); }
  void take(RestoreSource& value) {
    value = in_.enumerator(RestoreSource::own_memory, RestoreSource::storage);
  }
  void take(std::chrono::milliseconds& value) {
    // A hundred years: longer than any interval, and far from overflowing in nanoseconds' sums.
    constexpr std::uint64_t longest = 100ull * 365 * 24 * 3600 * 1000;
    value = std::chrono::milliseconds(std::min(in_.u64(), longest));
  }
  void take(std::chrono::nanoseconds& value) {
    constexpr std::chrono::nanoseconds longest = std::chrono::hours(24 * 365);
    const std::uint64_t most = static_cast<std::uint64_t>(longest.count());
    value = std::chrono::nanoseconds(std::min(in_.u64(), most));
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
  template <class T>
  void take(std::vector<T>& values) {
    values = in_.list<T>(encoded_bytes_min<T>(), [this] {
      T value{};
      take(value);
      return value;
    });
  }
  template <class T>
  void take(std::optional<T>& value) {
    value = in_.optional<T>([this] {
      T it{};
      take(it);
      return it;
    });
  }
  template <class Struct>
    requires requires(Struct& it) { fields(it); }
  void take(Struct& it) {
    std::apply([this](auto&... field) { (this->take(field), ...); }, fields(it));
  }

 private:
  template <class T>
  static constexpr std::size_t encoded_bytes_min() {
    if (std::is_same_v<T, Node>) return 3 * sizeof(std::uint32_t);
    if (std::is_same_v<T, std::string>) return sizeof(std::uint32_t);
    return sizeof(T);
  }

  format::Reader in_;
};

constexpr std::size_t kind_count = std::variant_size_v<AnyMessage>;
constexpr std::array<std::string_view, kind_count> names = {
    "hello",        "attach",        "set_layout",    "begin",          "filled",       "abandon",
    "skipped",      "start_fresh",   "ask_restore",   "restore_result", "restored_ok",  "close",
    "goodbye",      "attach_answer", "slot_segments", "slots_ready",    "slots_failed", "granted",
    "next_capture", "level_reached", "step_dropped",  "offer",          "begun",        "closed",
    "fenced",       "ask_status",    "ask_recover",   "stop",           "drop",         "answer",
    "arrived",      "flush",         "notice",        "filling",        "step_time"};

template <class Wanted, std::size_t index = 0>
constexpr std::uint16_t kind_of() {
  if constexpr (std::is_same_v<std::variant_alternative_t<index, AnyMessage>, Wanted>)
    return index + 1;
  else
    return kind_of<Wanted, index + 1>();
}

template <class Type>
Result<Message> decode_as(std::span<const std::byte> body) {
  Type message;
  Decoder in(body, names[kind_of<Type>() - 1]);
  in.take(message);
  CKPT_CHECK(in.finish());
  return Message(std::move(message));
}

using DecodeFunction = Result<Message> (*)(std::span<const std::byte>);
template <std::size_t... index>
constexpr std::array<DecodeFunction, kind_count> decode_functions(std::index_sequence<index...>) {
  return {&decode_as<std::variant_alternative_t<index, AnyMessage>>...};
}

}  // namespace

Result<os::LocalMessage> encode(const Message& message) {
  Encoder encoder;
  std::visit([&](const auto& it) { encoder.put(it); }, message);
  os::LocalMessage encoded(static_cast<std::uint16_t>(message.index() + 1), encoder.out().take());
  if (encoded.body.size() > os::local_body_bytes_max) {
    return fail(Errc::exhausted, fmt::format("send {} of {} bytes: at most {}", name_of(message),
                                             encoded.body.size(), os::local_body_bytes_max));
  }
  return encoded;
}

Result<Message> decode(const os::LocalMessage& message) {
  static constexpr auto functions = decode_functions(std::make_index_sequence<kind_count>());
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

std::string_view name_of(const Message& message) {
  return names[message.index()];
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
