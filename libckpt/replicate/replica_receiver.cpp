// Receiving a replica:
//   1. OFFER was read: decode the record, and ask the sink for a place.
//  2. GRANT it, listing the Chunks from an earlier attempt; or REFUSE.
//  3. Read DATA into place, or copy what SAME names from the base, verifying each Chunk.
//  4. Let the sink seal it, and only then send APPLIED.
#include "replicate/replica_receiver.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "format/codec.hpp"
#include "replicate/chunk_stream.hpp"

namespace ckpt::replicate {

namespace {

using wire::FrameKind;

Task<void> grant(ChunkStream& stream, const ChunkSet& have) {
  Status sent = co_await send_message(stream, FrameKind::grant, have.encode(), stream.base ? 1 : 0);
  co_return sent;
}

Task<void> send_applied(ChunkStream& stream) {
  format::Writer writer;
  writer.digest(stream.digest);
  Status sent = co_await send_message(stream, FrameKind::applied, writer.take());
  co_return sent;
}

Task<Received> receive(ChunkStream& stream, std::shared_ptr<const format::ShardRecord> record,
                       std::span<std::byte> target, ChunkSet have, std::uint64_t timeline) {
  // Step 2.
  CKPT_CO_CHECK(co_await grant(stream, have));
  // Step 3.
  auto arrived = co_await receive_chunks(stream, record, target, std::move(have), timeline);
  co_return arrived;
}

// Where our own base is damaged, nothing is wrong with what the peer has, and it need not look.
Error damage_of(const format::ShardRecord& record, const Received& arrived) {
  return Error(arrived.is_base_damaged ? Errc::unavailable : Errc::corruption,
               fmt::format("chunk {} of rank {}, step {} does not match its checksum{}",
                           *arrived.damaged_chunk, record.id.rank, number(record.id.at.step),
                           arrived.is_base_damaged ? " in the copy of an earlier step" : ""));
}

Task<void> refuse_damage(ChunkStream& stream, Error why) {
  Error reason = why;
  auto drained = co_await refuse_and_drain(stream, std::move(reason));
  static_cast<void>(drained);  // It always ends in an error.
  co_return fail(std::move(why).context("receive shard from " + stream.connection.remote()));
}

Result<ShardOffer> decode_offer(const wire::Message& message, wire::PeerIdentity from) {
  ShardOffer offer;
  std::span<const std::byte> body(message.body);
  if (message.kind == FrameKind::offer_changes) {
    const std::size_t front = std::min(body.size(), CopyName::encoded_bytes);
    CKPT_TRY(offer.base, decode_copy_name(body.first(front)));
    body = body.subspan(front);
  }
  CKPT_TRY(auto record, format::decode_shard_record(body));
  offer.from = std::move(from);
  offer.timeline = message.timeline;
  offer.digest = digest_of(body);
  if (record.job != offer.from.job)
    return fail(Errc::invalid_argument, fmt::format("offer: a shard of job {} on a connection of "
                                                    "job {}",
                                                    record.job, offer.from.job));
  for (std::size_t index = 0; index < record.chunk_crcs.size(); ++index)
    if (record.chunk(index).bytes > wire::data_body_bytes_max)
      return fail(Errc::exhausted, "offer: its chunks are larger than a frame may be");
  offer.record = std::make_shared<const format::ShardRecord>(std::move(record));
  return offer;
}

}  // namespace

Task<void> receive_shard(wire::Connection& connection, Clock& clock, wire::PeerIdentity from,
                         wire::Message message, ReplicaSink& sink, TransferOptions options) {
  ChunkStream stream{connection, clock, 0, Digest(), std::move(options)};
  // Step 1.
  auto offer = decode_offer(message, std::move(from));
  message.body = std::vector<std::byte>();
  auto reserved = offer ? sink.reserve(*offer) : fail(offer.error());
  if (!reserved) {
    auto refused = co_await refuse(stream, std::move(reserved).error());
    if (!refused) connection.close();
    co_return refused;
  }
  ReplicaTarget target = std::move(reserved).value();
  const auto record = offer->record;
  stream.ticket = target.ticket;
  stream.digest = offer->digest;
  stream.base = std::move(target.base);
  target.base.reset();
  stream.options.on_chunk = [&sink, ticket = target.ticket](std::size_t index) {
    sink.chunk_applied(ticket, index);
  };
  auto arrived =
      co_await receive(stream, record, target.bytes, std::move(target.applied), offer->timeline);
  if (arrived && arrived->is_base_damaged) sink.base_damaged(*stream.base, *arrived->damaged_chunk);
  stream.base.reset();
  Status received = arrived ? Status() : fail(arrived.error());
  if (arrived && arrived->damaged_chunk) {
    auto refused = co_await refuse_damage(stream, damage_of(*record, *arrived));
    received = std::move(refused);
  }
  target.hold.reset();
  if (!received) {
    connection.close();
    sink.abandoned(stream.ticket);
    co_return received;
  }
  // Step 4.
  Status sealed = sink.sealed(stream.ticket);
  auto answered = Status();
  if (sealed) {
    answered = co_await send_applied(stream);
  } else {
    answered = co_await refuse(stream, std::move(sealed).error());
  }
  if (!answered) connection.close();
  co_return answered;
}

}  // namespace ckpt::replicate
