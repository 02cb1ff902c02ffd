// Sending a replica:
//   1. OFFER the record.
//  2. GRANT names a ticket and the Chunks the peer has from an earlier attempt; or REFUSE.
//  3. DATA for the other Chunks, as the window allows.
//  4. APPLIED.
#include "replicate/replica_sender.hpp"

#include <fmt/format.h>

#include "base/assert.hpp"
#include "replicate/chunk_stream.hpp"

namespace ckpt::replicate {

namespace {

using wire::FrameKind;

struct Grant {
  std::optional<Error> refusal;
  std::uint64_t ticket = 0;
  ChunkSet have;
};

// Steps 1 and 2.
Task<Grant> make_offer(ChunkStream& stream, std::vector<std::byte> encoded, std::size_t chunks) {
  wire::Message offer;
  offer.kind = FrameKind::offer;
  offer.timeline = stream.options.timeline;
  offer.body = std::move(encoded);
  Time deadline = step_deadline(stream);
  CKPT_CO_CHECK(co_await wire::write_message(stream.connection, std::move(offer), deadline));
  deadline = step_deadline(stream);
  CKPT_CO_TRY(const wire::Message answer, co_await wire::read_message(stream.connection, deadline));
  Grant granted;
  if (answer.kind == FrameKind::refuse) {
    granted.refusal = wire::decode_refusal(answer.body, stream.connection.remote());
    co_return granted;
  }
  if (answer.kind != FrameKind::grant)
    co_return fail(Errc::corruption,
                   fmt::format("offer shard to {}: it answered with {}", stream.connection.remote(),
                               to_string(answer.kind)));
  granted.ticket = answer.ticket;
  CKPT_CO_TRY(granted.have, ChunkSet::decode(answer.body, chunks));
  co_return granted;
}

Task<Delivery> send(ChunkStream& stream, SealedShard source, ChunkSet have) {
  CKPT_CO_TRY(const Sent sent, co_await send_chunks(stream, source, std::move(have), false));
  if (sent.refusal) {
    if (sent.refusal->code() != Errc::cancelled) co_return fail(*sent.refusal);
    co_return Delivery::declined;
  }
  CKPT_ASSERT(sent.is_applied);
  co_return Delivery::applied;
}

}  // namespace

Task<Delivery> send_shard(wire::Connection& connection, Clock& clock, SealedShard source,
                          TransferOptions options) {
  CKPT_CO_CHECK(check_source(source));
  std::vector<std::byte> encoded = encode(*source.record);
  ChunkStream stream{connection, clock, 0, digest_of(encoded), std::move(options)};
  const std::size_t chunks = source.record->chunk_crcs.size();
  auto granted = co_await make_offer(stream, std::move(encoded), chunks);
  if (!granted) {
    connection.close();
    co_return fail(std::move(granted).error());
  }
  if (granted->refusal) {
    if (granted->refusal->code() != Errc::cancelled) co_return fail(*granted->refusal);
    co_return Delivery::declined;
  }
  stream.ticket = granted->ticket;
  auto sent = co_await send(stream, std::move(source), std::move(granted.value().have));
  if (!sent || *sent != Delivery::applied) connection.close();
  co_return sent;
}

Task<std::optional<std::size_t>> find_damage(Compute* compute, SealedShard source) {
  for (std::size_t index = 0; index < source.record->chunk_crcs.size(); ++index) {
    CKPT_CO_TRY(const bool is_good, co_await is_whole(compute, source, index));
    if (!is_good) co_return std::optional<std::size_t>(index);
  }
  co_return std::optional<std::size_t>();
}

}  // namespace ckpt::replicate
