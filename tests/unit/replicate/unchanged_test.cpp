// Goal:   Chunks that the peer has of an earlier step are not sent again, and what it then has is
//         what was captured, byte for byte: equal checksums prove nothing, a damaged base is not
//         copied, and a peer that lost the base gets all.
// Method: real sender and receiver over the simulated network, with a base at both ends, at one, or
//         at none; bytes that collide under CRC-32; flips of the stream and of the bases; lies.
#include "replicate/unchanged.hpp"
#include "format/codec.hpp"
#include "transfer_scene.hpp"

namespace ckpt::replicate {

namespace {

using test::Shard;
using test::StreamFault;
using test::TransferScene;

// Flips 33 bits that are the polynomial of CRC-32: the checksum stays the same.
void change_unnoticed(std::vector<std::byte>& bytes, std::size_t at) {
  constexpr std::uint64_t polynomial = 0x104c11db7;
  for (unsigned bit = 0; bit <= 32; ++bit) {
    if (((polynomial >> (32 - bit)) & 1) == 0) continue;
    bytes[at + bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

}  // namespace

TEST_CASE("unchanged: of a model with one percent that is trained, three percent are sent",
          "[unit][replicate]") {
  TransferScene scene;
  scene.connect();
  const Shard base(1000, 4 * page_bytes);
  Shard later = base.next();
  later.change(17);  // The header has the step.
  for (const std::size_t page : {500, 990}) later.change(page * page_bytes);
  scene.sink.base = base;
  const std::uint64_t before = scene.pair.network.bytes_delivered("A", "B");
  REQUIRE(scene.send_changes(later, base));
  REQUIRE(scene.sink.holds(later));
  REQUIRE(scene.sink.seals == 1);
  REQUIRE(scene.sink.guards_are_whole());
  REQUIRE(scene.chunks_sent == 3);
  REQUIRE(scene.chunks_named == 247);
  const std::uint64_t sent = scene.pair.network.bytes_delivered("A", "B") - before;
  REQUIRE(sent * 100 <= later.record->bytes * 3);
}

TEST_CASE("unchanged: a base of any size serves Chunks that lie in both", "[unit][replicate]") {
  const std::size_t pages = GENERATE(1, 4, 5, 8, 9);
  const std::size_t base_pages = GENERATE(1, 4, 5, 8, 9);
  TransferScene scene;
  scene.connect();
  const Shard base(base_pages, 4 * page_bytes);
  Shard later = Shard(pages, 4 * page_bytes).next();  // Bytes of the same seed.
  later.change(0);
  scene.sink.base = base;
  REQUIRE(scene.send_changes(later, base));
  REQUIRE(scene.sink.holds(later));
  const std::size_t whole_in_both =
      std::min(pages, base_pages) / 4 + (pages == base_pages && pages % 4 != 0 ? 1 : 0);
  REQUIRE(scene.chunks_named == (whole_in_both > 0 ? whole_in_both - 1 : 0));
  REQUIRE(scene.chunks_sent + scene.chunks_named == later.record->chunk_crcs.size());
}

TEST_CASE("unchanged: an equal checksum is no proof", "[unit][replicate]") {
  TransferScene scene;
  scene.connect();
  const Shard base(6);
  Shard later = base.next();
  later.change(0);
  change_unnoticed(*later.memory, 3 * page_bytes + 100);
  const auto chunk = std::span(*later.memory).subspan(3 * page_bytes, page_bytes);
  REQUIRE(crc32(chunk) == base.record->chunk_crcs[3]);
  scene.sink.base = base;
  REQUIRE(scene.send_changes(later, base));
  REQUIRE(scene.sink.holds(later));
  REQUIRE(scene.chunks_sent == 2);
  REQUIRE(scene.chunks_named == 4);
}

TEST_CASE("unchanged: a peer that has no such copy gets every Chunk", "[unit][replicate]") {
  TransferScene scene;
  scene.connect();
  const Shard base(6);
  const Shard later = base.next();
  SECTION("none at all") {}
  SECTION("another one") {
    scene.sink.base = Shard(6, page_bytes, 2);
  }
  REQUIRE(scene.send_changes(later, base));
  REQUIRE(scene.sink.offered_base);
  REQUIRE(scene.sink.offered_base->shard == base.record->id);
  REQUIRE(scene.sink.offered_base->digest == base.digest);
  REQUIRE(scene.sink.holds(later));
  REQUIRE(scene.chunks_sent == 6);
  REQUIRE(scene.chunks_named == 0);
}

TEST_CASE("unchanged: a damaged base is reported and not copied, and then all is sent",
          "[unit][replicate]") {
  TransferScene scene;
  scene.connect();
  const Shard base(6);
  const Shard later = base.next();
  Shard rotten(base);
  rotten.memory = std::make_shared<test::Bytes>(*base.memory);
  (*rotten.memory)[4 * page_bytes + 9] ^= std::byte{8};
  scene.sink.base = rotten;
  const Status sent = scene.send_changes(later, base);
  REQUIRE_FALSE(sent);
  REQUIRE(sent.error().code() == Errc::unavailable);  // The sender need not look at its own.
  REQUIRE(scene.sink.damaged_of_base == 4u);
  REQUIRE(scene.sink.seals == 0);
  REQUIRE(scene.sink.applied.count() == 4);
  scene.connect();
  REQUIRE(scene.send_changes(later, base));
  REQUIRE(scene.sink.holds(later));
  REQUIRE(scene.chunks_sent == 2);  // Those before it had been verified.
}

TEST_CASE("unchanged: damage of the sender's base costs bytes, and serves nothing wrong",
          "[unit][replicate]") {
  TransferScene scene;
  scene.connect();
  const Shard base(6);
  const Shard later = base.next();
  scene.sink.base = base;
  Shard rotten(base);
  rotten.memory = std::make_shared<test::Bytes>(*base.memory);
  (*rotten.memory)[4 * page_bytes + 9] ^= std::byte{8};
  REQUIRE(scene.send_changes(later, rotten));
  REQUIRE(scene.sink.holds(later));
  REQUIRE(scene.chunks_sent == 1);
}

TEST_CASE("unchanged: a Chunk may lie across other segments in the base", "[unit][replicate]") {
  TransferScene scene;
  const Shard base(9, 4 * page_bytes);
  const auto cut_at = [&](std::vector<std::size_t> sizes) {
    SealedShard source = base.source();
    const os::FileSpan whole = source.spans.front();
    source.spans.clear();
    std::size_t at = 0;
    for (const std::size_t size : sizes) {
      os::FileSpan part;
      part.bytes = whole.bytes.subspan(at, std::min(size, whole.bytes.size() - at));
      at += part.bytes.size();
      source.spans.push_back(part);
    }
    return source;
  };
  const SealedShard one = cut_at({1, 5000, 0, 20'000, 100'000});
  const SealedShard other = cut_at({4096, 4096, 12'000, 100'000});
  const SealedShard whole = base.source();
  for (std::size_t chunk = 0; chunk < base.record->chunk_crcs.size(); ++chunk) {
    REQUIRE(scene.pair.run(is_same(nullptr, one, other, chunk)).value());
    REQUIRE(scene.pair.run(is_same(nullptr, one, whole, chunk)).value());
    const format::Extent extent = base.record->chunk(chunk);
    test::Bytes target(extent.bytes);
    const Crc32 crc = base.record->chunk_crcs[chunk];
    REQUIRE(scene.pair.run(copy_same(nullptr, one, chunk, target, crc)).value());
    REQUIRE(std::equal(target.begin(), target.end(),
                       base.memory->begin() + static_cast<std::ptrdiff_t>(extent.offset)));
    REQUIRE_FALSE(scene.pair.run(copy_same(nullptr, one, chunk, target, crc + 1)).value());
  }
  Shard changed(base);
  changed.memory = std::make_shared<test::Bytes>(*base.memory);
  changed.memory->back() ^= std::byte{1};  // The last byte of the last Chunk.
  REQUIRE_FALSE(scene.pair.run(is_same(nullptr, one, changed.source(), 2)).value());
}

TEST_CASE("unchanged: a flip of any byte of the stream is never sealed", "[unit][replicate]") {
  const Shard base(3);
  Shard later = base.next();
  later.change(1);
  const auto bytes_of = [&](TransferScene& scene) {
    return scene.pair.network.bytes_delivered("A", "B");
  };
  std::uint64_t size = 0;
  {
    TransferScene scene;
    scene.connect();
    scene.sink.base = base;
    REQUIRE(scene.send_changes(later, base));
    size = bytes_of(scene);
  }
  REQUIRE(size < 2 * page_bytes);
  for (std::uint64_t offset = 0; offset < size; offset += offset % 5 == 0 ? 3 : 1) {
    TransferScene scene(offset);
    scene.connect();
    scene.sink.base = base;
    StreamFault fault;
    fault.from = "A";
    fault.to = "B";
    fault.offset = offset;
    fault.kind = StreamFault::Kind::flip;
    fault.bit = static_cast<std::uint8_t>(offset % 8);
    scene.pair.network.inject(fault);
    INFO("byte " << offset << " of " << size);
    // A flip in the base's name leaves a sound offer of a shard on a base that nobody has.
    const Status sent = scene.send_changes(later, base);
    REQUIRE(scene.sink.seals == (sent ? 1 : 0));
    if (sent) REQUIRE(scene.sink.holds(later));
    REQUIRE_FALSE(scene.sink.damaged_of_base);
    if (sent) continue;
    const Status ended = scene.service_end();  // Its place is free for the next attempt.
    REQUIRE_FALSE(ended);
    scene.connect();
    const Status again = scene.send_changes(later, base);
    REQUIRE((again ? "" : again.error().message()) == "");
    REQUIRE(scene.sink.holds(later));
  }
}

namespace {

// A dialer that names Chunks by hand.
Status name_by_hand(TransferScene& scene, const Shard& shard, const std::optional<Shard>& base,
                    const std::function<void(wire::FrameHeader&)>& twist) {
  scene.connect();
  wire::Message offer;
  offer.kind = base ? wire::FrameKind::offer_changes : wire::FrameKind::offer;
  offer.timeline = 1;
  offer.body = encode(*shard.record);
  if (base) {
    const auto name = encode(CopyName{base->record->id, base->digest});
    offer.body.insert(offer.body.begin(), name.begin(), name.end());
  }
  REQUIRE(scene.pair.run(wire::write_message(*scene.at_a, offer, no_deadline)));
  const auto grant = scene.pair.run(wire::read_message(*scene.at_a, no_deadline));
  REQUIRE(grant);
  REQUIRE(grant->kind == wire::FrameKind::grant);
  wire::FrameHeader same;
  same.kind = wire::FrameKind::same;
  same.ticket = grant->ticket;
  same.timeline = 1;
  twist(same);
  const wire::FrameHeaderBytes bytes = encode_header(same);
  REQUIRE(scene.pair.run(scene.at_a->write(bytes, no_deadline)));
  return scene.service_end();
}

}  // namespace

TEST_CASE("unchanged: a name that does not fit closes the connection and copies nothing",
          "[unit][replicate]") {
  const int lie = GENERATE(range(0, 6));
  TransferScene scene;
  const Shard base(3);
  Shard later = base.next();
  later.change(2 * page_bytes);
  scene.sink.base = base;
  const std::optional<Shard> named = lie == 0 ? std::optional<Shard>() : base;
  const Status served = name_by_hand(scene, later, named, [&](wire::FrameHeader& same) {
    if (lie == 1) same.ticket += 1;
    if (lie == 2) same.timeline = 2;
    if (lie == 3) same.offset = 2 * page_bytes;  // A Chunk that has changed.
    if (lie == 4) same.offset = 3 * page_bytes;
    if (lie == 5) same.offset = 1;
  });
  REQUIRE_FALSE(served);
  REQUIRE(served.error().code() == Errc::corruption);
  REQUIRE(scene.sink.applied.count() == 0);
  REQUIRE_FALSE(scene.sink.damaged_of_base);
  for (const std::byte byte : scene.sink.bytes()) REQUIRE(byte == test::Sink::guard);
}

TEST_CASE("unchanged: an offer that ends within the base's name is refused", "[unit][replicate]") {
  TransferScene scene;
  scene.connect();
  wire::Message offer;
  offer.kind = wire::FrameKind::offer_changes;
  offer.body.resize(CopyName::encoded_bytes - 1);
  REQUIRE(scene.pair.run(wire::write_message(*scene.at_a, offer, no_deadline)));
  const auto answer = scene.pair.run(wire::read_message(*scene.at_a, no_deadline));
  REQUIRE(answer);
  REQUIRE(answer->kind == wire::FrameKind::refuse);
  REQUIRE(wire::decode_refusal(answer->body, "B").code() == Errc::corruption);
  REQUIRE(scene.sink.offers == 0);
}

TEST_CASE("unchanged: a limit on what is sent does not hold named Chunks up", "[unit][replicate]") {
  TransferScene scene;
  scene.connect();
  const Shard base(1024, 64 * page_bytes);
  const Shard later = base.next();
  scene.sink.base = base;
  TransferOptions limited = scene.options();
  limited.throttle = std::make_shared<Throttle>(scene.pair.clock, 100 * KiB);
  const auto sent = scene.pair.run(send_changes(*scene.at_a, scene.pair.clock, later.source(),
                                                {base.source(), base.digest}, limited));
  REQUIRE(sent);
  REQUIRE(scene.sink.holds(later));
  REQUIRE(limited.throttle->bytes_taken() == 0);
}

}  // namespace ckpt::replicate
