// Goal:   a replica is counted as one only when every byte of it was verified at its place; what
// goes
//         wrong on the way costs time, never bytes.
// Method: real sender and receiver over the simulated network: every byte of the conversation
// flipped,
//         the stream cut at every kind of place, then resumed; frames made by hand that lie.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "format/codec.hpp"
#include "replicate/chunk_stream.hpp"
#include "transfer_scene.hpp"

namespace ckpt::replicate {

namespace {

using test::Shard;
using test::SimNetworkOptions;
using test::StreamFault;
using test::TransferScene;

// A transfer's stream by byte: where an undisturbed one of the same kind has its parts.
std::uint64_t stream_bytes(const Shard& shard, const std::string& from, const std::string& to) {
  TransferScene scene;
  scene.connect();
  REQUIRE(scene.send(shard));
  return scene.pair.network.bytes_delivered(from, to);
}

StreamFault fault_at(std::uint64_t offset, StreamFault::Kind kind, bool forth = true) {
  StreamFault fault;
  fault.from = forth ? "A" : "B";
  fault.to = forth ? "B" : "A";
  fault.offset = offset;
  fault.kind = kind;
  fault.bit = static_cast<std::uint8_t>(offset % 8);
  return fault;
}

}  // namespace

TEST_CASE("replica: it is sealed with the same bytes, whatever its size", "[unit][replicate]") {
  const std::size_t pages = GENERATE(1, 2, 3, 4, 5, 8, 9, 200);
  const std::uint64_t chunk = GENERATE(as<std::uint64_t>(), page_bytes, 4 * page_bytes, MiB);
  TransferScene scene;
  scene.connect();
  const Shard shard(pages, chunk);
  REQUIRE(scene.send(shard));
  REQUIRE(scene.sink.seals == 1);
  REQUIRE(scene.sink.abandonments == 0);
  REQUIRE(scene.sink.holds(shard));
  REQUIRE(scene.sink.guards_are_whole());
  REQUIRE(scene.sink.from.node == "A");
  REQUIRE(scene.sink.timeline == 1);
}

TEST_CASE("replica: one connection carries many, until goodbye", "[unit][replicate]") {
  TransferScene scene;
  scene.connect();
  for (std::uint64_t seed = 1; seed < 10; ++seed) {
    const Shard shard(seed, page_bytes, seed);
    REQUIRE(scene.send(shard));
    REQUIRE(scene.sink.holds(shard));
  }
  wire::Message goodbye;
  REQUIRE(scene.pair.run(wire::write_message(*scene.at_a, goodbye, no_deadline)));
  REQUIRE(scene.service_end());
  REQUIRE(scene.pair.network.open_streams("B") == 0);
}

TEST_CASE("replica: a connection that ends between two requests has ended well",
          "[unit][replicate]") {
  TransferScene scene;
  scene.connect();
  REQUIRE(scene.send(Shard(1)));
  SECTION("closed by the peer") {
    scene.at_a->close();
  }
  SECTION("without a request for long") {}
  REQUIRE(scene.service_end());
  REQUIRE(scene.pair.network.open_streams("B") == 0);
}

// A chunk at this rate takes twice as long as a peer waits for the next bytes.
TEST_CASE("replica: a limit on what is sent holds, and no peer gives up", "[unit][replicate]") {
  TransferScene scene;
  scene.connect();
  const Shard shard(4 * MiB / page_bytes, 2 * MiB);
  TransferOptions limited = scene.options();
  limited.throttle = std::make_shared<Throttle>(scene.pair.clock, 100 * KiB);
  const Time began = scene.pair.clock.now();
  REQUIRE(scene.pair.run(send_shard(*scene.at_a, scene.pair.clock, shard.source(), limited)));
  REQUIRE(scene.sink.holds(shard));
  REQUIRE(limited.throttle->bytes_taken() == shard.record->bytes);
  // The last piece goes on when those before it are paid for.
  const double seconds = (4.0 * MiB - piece_bytes) / (100 * KiB);
  const Duration took = scene.pair.clock.now() - began;
  REQUIRE(std::chrono::duration<double>(took).count() >= seconds);
  REQUIRE(std::chrono::duration<double>(took).count() < seconds + 1);
}

TEST_CASE("replica: a chunk may lie across two segments", "[unit][replicate]") {
  TransferScene scene;
  scene.connect();
  const Shard shard(9, 4 * page_bytes);
  SealedShard source = shard.source();
  const os::FileSpan whole = source.spans.front();
  source.spans.clear();
  std::size_t at = 0;
  for (const std::size_t size : {std::size_t{1}, std::size_t{5000}, std::size_t{0},
                                 std::size_t{20'000}, whole.bytes.size()}) {
    os::FileSpan part;
    part.bytes = whole.bytes.subspan(at, std::min(size, whole.bytes.size() - at));
    at += part.bytes.size();
    source.spans.push_back(part);
  }
  REQUIRE(scene.pair.run(send_shard(*scene.at_a, scene.pair.clock, source, scene.options())));
  REQUIRE(scene.sink.holds(shard));
}

TEST_CASE("replica: a source shorter than its record is not offered", "[unit][replicate]") {
  TransferScene scene;
  scene.connect();
  SealedShard source = Shard(3).source();
  source.spans.front().bytes = source.spans.front().bytes.first(2 * page_bytes);
  const auto sent =
      scene.pair.run(send_shard(*scene.at_a, scene.pair.clock, source, scene.options()));
  REQUIRE_FALSE(sent);
  REQUIRE(sent.error().code() == Errc::invalid_argument);
  REQUIRE(scene.sink.offers == 0);
}

TEST_CASE("replica: a flip of any byte of the sender's stream is never sealed",
          "[unit][replicate]") {
  const Shard shard(2);
  const std::uint64_t size = stream_bytes(shard, "A", "B");
  // Everything that is not plain data, and data at every 61st byte.
  const std::uint64_t data_begin = size - 2 * (page_bytes + wire::frame_header_bytes);
  for (std::uint64_t offset = 0; offset < size; ++offset) {
    const bool is_data = offset > data_begin &&
                         (offset - data_begin) % (page_bytes + 48) >= wire::frame_header_bytes;
    if (is_data && offset % 61 != 0) continue;
    TransferScene scene(offset);
    scene.connect();
    scene.pair.network.inject(fault_at(offset, StreamFault::Kind::flip));
    INFO("byte " << offset << " of " << size);
    REQUIRE_FALSE(scene.send(shard));
    REQUIRE(scene.sink.seals == 0);
    REQUIRE(scene.sink.guards_are_whole());
    // The next attempt succeeds and sends only what is missing.
    scene.connect();
    const std::size_t had = scene.sink.applied.count();
    const std::uint64_t before = scene.pair.network.bytes_delivered("A", "B");
    REQUIRE(scene.send(shard));
    REQUIRE(scene.sink.holds(shard));
    const std::uint64_t sent = scene.pair.network.bytes_delivered("A", "B") - before;
    REQUIRE(sent == size - had * (page_bytes + wire::frame_header_bytes));
  }
}

TEST_CASE("replica: a flip of any byte of the receiver's answers is never success",
          "[unit][replicate]") {
  const Shard shard(2);
  const std::uint64_t size = stream_bytes(shard, "B", "A");
  for (std::uint64_t offset = 0; offset < size; ++offset) {
    TransferScene scene(offset);
    scene.connect();
    scene.pair.network.inject(fault_at(offset, StreamFault::Kind::flip, false));
    INFO("byte " << offset << " of " << size);
    REQUIRE_FALSE(scene.send(shard));
    scene.connect();
    REQUIRE(scene.send(shard));
    REQUIRE(scene.sink.holds(shard));
  }
}

TEST_CASE("replica: a stream that is cut anywhere is abandoned once, then resumed",
          "[unit][replicate]") {
  const Shard shard(5, 2 * page_bytes);
  const bool forth = GENERATE(true, false);
  const std::uint64_t size = forth ? stream_bytes(shard, "A", "B") : stream_bytes(shard, "B", "A");
  for (std::uint64_t offset = 0; offset < size; offset += forth ? 97 : 1) {
    TransferScene scene(offset);
    scene.connect();
    scene.pair.network.inject(fault_at(offset, StreamFault::Kind::reset, forth));
    const Status sent = scene.send(shard);
    INFO("byte " << offset << " of " << size);
    REQUIRE_FALSE(sent);
    REQUIRE(sent.error().code() == Errc::unavailable);
    // A cut between two requests is only a connection that has ended.
    const Status ended = scene.service_end();
    REQUIRE((scene.sink.abandonments == 0 || !ended));
    REQUIRE(scene.sink.abandonments + scene.sink.seals <= 1);
    REQUIRE(scene.sink.hold.expired());
    scene.connect();
    REQUIRE(scene.send(shard));
    REQUIRE(scene.sink.holds(shard));
    REQUIRE(scene.sink.guards_are_whole());
  }
}

TEST_CASE("replica: one byte at a time is slow and right", "[unit][replicate]") {
  SimNetworkOptions drip;
  drip.piece_bytes_max = 1;
  TransferScene scene(1, drip);
  scene.connect();
  const Shard shard(2);
  REQUIRE(scene.send(shard));
  REQUIRE(scene.sink.holds(shard));
}

TEST_CASE("replica: a sender that stops in mid-chunk is given up after the stall deadline",
          "[unit][replicate]") {
  TransferScene scene;
  scene.connect();
  const Shard shard(3);
  auto sending = test::start(scene.pair.context, send_shard(*scene.at_a, scene.pair.clock,
                                                            shard.source(), scene.options()));
  while (scene.sink.applied.count() == 0) REQUIRE(scene.pair.clock.advance_to_next());
  scene.pair.network.partition("A", "B");
  const Time before = scene.pair.clock.now();
  const Status served = scene.service_end();
  REQUIRE_FALSE(served);
  REQUIRE(served.error().code() == Errc::unavailable);
  REQUIRE(scene.sink.abandonments + scene.sink.seals == 1);
  REQUIRE(scene.pair.clock.now() - before <= scene.stall);
  REQUIRE_FALSE(test::finish(scene.pair.clock, std::move(sending)));
}

TEST_CASE("replica: a peer that never reads is given up after the stall deadline",
          "[unit][replicate]") {
  test::SimPair pair;
  const auto joined = pair.join();
  const Shard shard(200);
  TransferOptions options;
  options.stall = std::chrono::seconds(3);
  const Time before = pair.clock.now();
  const auto sent =
      pair.run(send_shard(*joined.at_a, pair.clock, shard.source(), std::move(options)));
  REQUIRE_FALSE(sent);
  REQUIRE(sent.error().code() == Errc::unavailable);
  REQUIRE(pair.clock.now() - before <= std::chrono::seconds(4));
}

TEST_CASE("replica: the whole has a deadline, however well it goes on", "[unit][replicate]") {
  SimNetworkOptions slow;
  slow.bytes_per_second = 10'000;
  TransferScene scene(1, slow);
  scene.connect();
  TransferOptions options = scene.options();
  options.deadline = scene.pair.clock.after(std::chrono::seconds(20));
  const auto sent = scene.pair.run(
      send_shard(*scene.at_a, scene.pair.clock, Shard(200).source(), std::move(options)));
  REQUIRE_FALSE(sent);
  REQUIRE(sent.error().code() == Errc::unavailable);
}

TEST_CASE("replica: a refused offer says why, and the connection goes on", "[unit][replicate]") {
  TransferScene scene;
  scene.connect();
  const Shard shard(3);
  scene.sink.refusal = Error(Errc::exhausted, "needs 12 KiB, has 4 KiB");
  const Status refused = scene.send(shard);
  REQUIRE_FALSE(refused);
  REQUIRE(refused.error().code() == Errc::exhausted);
  REQUIRE(refused.error().text().find("needs 12 KiB, has 4 KiB") != std::string::npos);
  scene.sink.refusal.reset();
  REQUIRE(scene.send(shard));
}

TEST_CASE("replica: without the engine's seal there is no copy", "[unit][replicate]") {
  TransferScene scene;
  scene.connect();
  scene.sink.seal_failure = Error(Errc::cancelled, "timeline 1 is fenced");
  const Status sent = scene.send(Shard(3));
  REQUIRE_FALSE(sent);
  REQUIRE(sent.error().text() == "declined");
  REQUIRE(scene.sink.seals == 1);
  REQUIRE(scene.sink.abandonments == 0);
}

TEST_CASE("replica: a connection that is closed here is not taken for a peer that declines",
          "[unit][replicate]") {
  TransferScene scene;
  scene.connect();
  scene.sink.seal_failure = Error(Errc::cancelled, "timeline 1 is fenced");
  const auto send = [&] {
    return scene.pair.run(
        send_shard(*scene.at_a, scene.pair.clock, Shard(3).source(), scene.options()));
  };
  const Result<Delivery> declined = send();
  REQUIRE(declined);
  REQUIRE(*declined == Delivery::declined);
  const Result<Delivery> closed = send();
  REQUIRE_FALSE(closed);
}

TEST_CASE("replica: damage of the sender's own bytes is found, chunk by chunk",
          "[unit][replicate]") {
  const std::size_t chunk = GENERATE(as<std::size_t>(), 0, 3, 19);
  TransferScene scene;
  Shard shard(20);
  const Result<std::optional<std::size_t>> whole =
      scene.pair.run(find_damage(nullptr, shard.source()));
  REQUIRE(whole);
  REQUIRE_FALSE(*whole);
  (*shard.memory)[chunk * page_bytes + 17] ^= std::byte{1};
  const Result<std::optional<std::size_t>> damaged =
      scene.pair.run(find_damage(nullptr, shard.source()));
  REQUIRE(damaged);
  REQUIRE(*damaged == chunk);
}

TEST_CASE("replica: another job's shard is refused", "[unit][replicate]") {
  TransferScene scene;
  scene.connect();
  Shard shard(3);
  shard.record->job = "bert";
  const Status sent = scene.send(shard);
  REQUIRE_FALSE(sent);
  REQUIRE(sent.error().code() == Errc::invalid_argument);
  REQUIRE(scene.sink.offers == 0);
}

TEST_CASE("replica: bytes that rotted at the sender are refused, and the sender learns it",
          "[unit][replicate]") {
  const std::size_t chunk = GENERATE(as<std::size_t>(), 0, 3, 19);
  TransferScene scene;
  scene.connect();
  Shard shard(20);
  (*shard.memory)[chunk * page_bytes + 7] ^= std::byte(4);
  const Status sent = scene.send(shard);
  REQUIRE_FALSE(sent);
  REQUIRE(sent.error().code() == Errc::corruption);
  REQUIRE(sent.error().text().find(fmt::format("chunk {} ", chunk)) != std::string::npos);
  REQUIRE(scene.sink.seals == 0);
  REQUIRE(scene.sink.applied.count() == chunk);
}

TEST_CASE("replica: a shard that is there already costs only its record", "[unit][replicate]") {
  TransferScene scene;
  scene.connect();
  const Shard shard(50);
  REQUIRE(scene.send(shard));
  const std::uint64_t before = scene.pair.network.bytes_delivered("A", "B");
  REQUIRE(scene.send(shard));
  REQUIRE(scene.pair.network.bytes_delivered("A", "B") - before < 4 * KiB);
  REQUIRE(scene.sink.seals == 2);
}

namespace {

// A dialer that speaks by hand, after a grant that it got honestly.
class Liar {
 public:
  explicit Liar(TransferScene& scene, const Shard& shard) : scene_(scene) {
    scene_.connect();
    wire::Message offer;
    offer.kind = wire::FrameKind::offer;
    offer.timeline = 1;
    offer.body = encode(*shard.record);
    REQUIRE(scene_.pair.run(wire::write_message(*scene_.at_a, offer, no_deadline)));
    const auto grant = scene_.pair.run(wire::read_message(*scene_.at_a, no_deadline));
    REQUIRE(grant);
    REQUIRE(grant->kind == wire::FrameKind::grant);
    good.kind = wire::FrameKind::data;
    good.ticket = grant->ticket;
    good.timeline = 1;
    good.body_bytes = page_bytes;
    good.body_crc = shard.record->chunk_crcs[0];
  }
  // The service's end, or nothing when it goes on.
  void say(const wire::FrameHeader& header, std::span<const std::byte> body) {
    const wire::FrameHeaderBytes bytes = encode_header(header);
    const Time soon = scene_.pair.clock.after(std::chrono::seconds(1));
    const Status head = scene_.pair.run(scene_.at_a->write(bytes, soon));
    const Status rest = scene_.pair.run(scene_.at_a->write(body, soon));
    static_cast<void>(head);  // The other side may have closed.
    static_cast<void>(rest);
  }

  wire::FrameHeader good;

 private:
  TransferScene& scene_;
};

}  // namespace

TEST_CASE("replica: data that does not fit the grant closes the connection and writes nothing",
          "[unit][replicate]") {
  const int lie = GENERATE(range(0, 11));
  TransferScene scene;
  const Shard shard(3);
  Liar liar(scene, shard);
  wire::FrameHeader bad = liar.good;
  if (lie == 0) bad.ticket += 1;
  if (lie == 1) bad.timeline = 2;
  if (lie == 2) bad.offset = 3 * page_bytes;
  if (lie == 3) bad.offset = 1;
  if (lie == 4) bad.offset = UINT64_MAX - page_bytes + 1;
  if (lie == 5) bad.body_bytes = page_bytes + 1;
  if (lie == 6) bad.body_bytes = page_bytes - 1;
  if (lie == 7) bad.body_crc ^= 1;
  if (lie == 8) bad.kind = wire::FrameKind::record;
  if (lie == 9) bad.timeline = 0;
  if (lie == 10) bad.ticket -= 1;
  liar.say(bad, std::span<const std::byte>(*shard.memory).first(bad.body_bytes));
  const Status served = scene.service_end();
  REQUIRE_FALSE(served);
  REQUIRE(served.error().code() == Errc::corruption);
  REQUIRE(scene.sink.abandonments == 1);
  REQUIRE(scene.sink.applied.count() == 0);
  REQUIRE(scene.sink.guards_are_whole());
  for (const std::byte byte : scene.sink.bytes()) REQUIRE(byte == test::Sink::guard);
}

TEST_CASE("replica: a chunk that is there already is not overwritten", "[unit][replicate]") {
  TransferScene scene;
  const Shard shard(3);
  Liar liar(scene, shard);
  const auto first = std::span<const std::byte>(*shard.memory).first(page_bytes);
  liar.say(liar.good, first);
  scene.pair.clock.advance(std::chrono::seconds(1));
  REQUIRE(scene.sink.applied.count() == 1);
  liar.say(liar.good, test::bytes_from(99, page_bytes));
  REQUIRE_FALSE(scene.service_end());
  REQUIRE(std::equal(first.begin(), first.end(), scene.sink.bytes().begin()));
}

TEST_CASE("replica: data without a grant closes the connection", "[unit][replicate]") {
  TransferScene scene;
  scene.connect();
  wire::FrameHeader data;
  data.kind = wire::FrameKind::data;
  data.body_bytes = wire::data_body_bytes_max;
  const wire::FrameHeaderBytes bytes = encode_header(data);
  REQUIRE(scene.pair.run(scene.at_a->write(bytes, no_deadline)));
  const Status served = scene.service_end();
  REQUIRE_FALSE(served);
  REQUIRE(served.error().code() == Errc::corruption);
}

TEST_CASE("replica: a message that is no request closes a data connection", "[unit][replicate]") {
  const auto kind = GENERATE(wire::FrameKind::report, wire::FrameKind::grant,
                             wire::FrameKind::applied, wire::FrameKind::hello);
  TransferScene scene;
  scene.connect();
  wire::Message message;
  message.kind = kind;
  REQUIRE(scene.pair.run(wire::write_message(*scene.at_a, message, no_deadline)));
  const Status served = scene.service_end();
  REQUIRE_FALSE(served);
  REQUIRE(served.error().code() == Errc::invalid_argument);
}

TEST_CASE("replica: a damaged record is refused", "[unit][replicate]") {
  TransferScene scene;
  scene.connect();
  wire::Message offer;
  offer.kind = wire::FrameKind::offer;
  offer.body = encode(*Shard(3).record);
  offer.body[offer.body.size() / 2] ^= std::byte(1);
  REQUIRE(scene.pair.run(wire::write_message(*scene.at_a, offer, no_deadline)));
  const auto answer = scene.pair.run(wire::read_message(*scene.at_a, no_deadline));
  REQUIRE(answer);
  REQUIRE(answer->kind == wire::FrameKind::refuse);
  REQUIRE(wire::decode_refusal(answer->body, "B").code() == Errc::corruption);
  REQUIRE(scene.sink.offers == 0);
}

TEST_CASE("replica: a sender keeps its window", "[unit][replicate]") {
  // The receiver reads everything and acknowledges nothing.
  test::SimPair pair;
  const auto joined = pair.join();
  const Shard shard(100);
  TransferOptions options;
  options.window_bytes = 5 * page_bytes;
  options.stall = std::chrono::seconds(2);
  auto sending = test::start(
      pair.context, send_shard(*joined.at_a, pair.clock, shard.source(), std::move(options)));
  REQUIRE(pair.run(wire::read_message(*joined.at_b, no_deadline)));
  wire::Message grant;
  grant.kind = wire::FrameKind::grant;
  grant.ticket = 5;
  grant.body = ChunkSet(100).encode();
  REQUIRE(pair.run(wire::write_message(*joined.at_b, grant, no_deadline)));
  const std::uint64_t before = pair.network.bytes_delivered("A", "B");
  test::Bytes swallowed(64 * KiB);
  auto reading = test::start(
      pair.context, joined.at_b->read(swallowed, pair.clock.after(std::chrono::seconds(9))));
  REQUIRE_FALSE(test::finish(pair.clock, std::move(sending)));
  REQUIRE(pair.network.bytes_delivered("A", "B") - before ==
          5 * (page_bytes + wire::frame_header_bytes));
  REQUIRE_FALSE(test::finish(pair.clock, std::move(reading)));
}

TEST_CASE("replica: an answer out of turn is corruption", "[unit][replicate]") {
  const auto kind =
      GENERATE(wire::FrameKind::applied, wire::FrameKind::report, wire::FrameKind::offer);
  test::SimPair pair;
  const auto joined = pair.join();
  const Shard shard(3);
  auto sending =
      test::start(pair.context, send_shard(*joined.at_a, pair.clock, shard.source(), {}));
  REQUIRE(pair.run(wire::read_message(*joined.at_b, no_deadline)));
  wire::Message answer;
  answer.kind = kind;
  REQUIRE(pair.run(wire::write_message(*joined.at_b, answer, no_deadline)));
  const auto sent = test::finish(pair.clock, std::move(sending));
  REQUIRE_FALSE(sent);
  REQUIRE(sent.error().code() == Errc::corruption);
}

TEST_CASE("replica: only the shard that was sent counts as applied", "[unit][replicate]") {
  const bool is_ours = GENERATE(true, false);
  test::SimPair pair;
  const auto joined = pair.join();
  const Shard shard(3);
  auto sending =
      test::start(pair.context, send_shard(*joined.at_a, pair.clock, shard.source(), {}));
  REQUIRE(pair.run(wire::read_message(*joined.at_b, no_deadline)));
  ChunkSet all(3);
  for (const std::size_t index : {0u, 1u, 2u}) all.insert(index);
  wire::Message answer;
  answer.kind = wire::FrameKind::grant;
  answer.ticket = 5;
  answer.body = all.encode();
  REQUIRE(pair.run(wire::write_message(*joined.at_b, answer, no_deadline)));
  format::Writer writer;
  writer.digest(is_ours ? shard.digest : Digest{1, 2});
  answer.kind = wire::FrameKind::applied;
  answer.body = writer.take();
  REQUIRE(pair.run(wire::write_message(*joined.at_b, answer, no_deadline)));
  const auto sent = test::finish(pair.clock, std::move(sending));
  REQUIRE(sent.has_value() == is_ours);
  if (!is_ours) CHECK(sent.error().code() == Errc::corruption);
}

TEST_CASE("replica: through any weather it arrives in the end, or fails and says so",
          "[unit][replicate]") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SimNetworkOptions storm;
    storm.reset_one_in = 200;
    storm.flip_one_in = 200;
    storm.piece_bytes_max = 5000;
    storm.delay_max = std::chrono::milliseconds(40);
    TransferScene scene(seed, storm);
    const Shard shard(40, 2 * page_bytes, seed);
    INFO("seed " << seed);
    Status sent = fail(Errc::unavailable, "not yet");
    for (int attempt = 0; attempt < 60 && !sent; ++attempt) {
      scene.connect();
      sent = scene.send(shard);
      REQUIRE(scene.sink.guards_are_whole());
      REQUIRE((!sent || scene.sink.holds(shard)));
    }
    REQUIRE(sent);
    REQUIRE(scene.sink.seals >= 1);
  }
}

TEST_CASE("replica: a run is a function of its seed", "[unit][replicate]") {
  const auto run = [](std::uint64_t seed) {
    TransferScene scene(seed);
    scene.connect();
    REQUIRE(scene.send(Shard(30)));
    return scene.pair.clock.now();
  };
  REQUIRE(run(7) == run(7));
  REQUIRE(run(7) != run(8));
}

TEST_CASE("chunk set: it arrives as it was, and nothing else is taken for one",
          "[unit][replicate]") {
  for (const std::size_t size : {0u, 1u, 7u, 8u, 9u, 64u, 1000u}) {
    ChunkSet set(size);
    for (std::size_t index = 0; index < size; index += 3) REQUIRE(set.insert(index));
    if (size > 0) REQUIRE_FALSE(set.insert(0));
    const auto decoded = ChunkSet::decode(set.encode(), size);
    REQUIRE(decoded);
    REQUIRE(decoded->count() == set.count());
    for (std::size_t index = 0; index < size; ++index)
      REQUIRE(decoded->contains(index) == set.contains(index));
    REQUIRE_FALSE(ChunkSet::decode(set.encode(), size + 1));
    auto longer = set.encode();
    longer.push_back(std::byte(0));
    REQUIRE_FALSE(ChunkSet::decode(longer, size));
    if (size % 8 != 0) {
      auto beyond = set.encode();
      beyond.back() |= std::byte(0x80);
      REQUIRE_FALSE(ChunkSet::decode(beyond, size));
    }
  }
  REQUIRE_FALSE(ChunkSet::decode({}, 0));
}

}  // namespace ckpt::replicate
