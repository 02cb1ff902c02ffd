// Sending a replica:
//  1. OFFER the record; with a base, OFFER_CHANGES names that first.
//  2. GRANT names a ticket and the Chunks the peer has from an earlier attempt; or REFUSE.
//  3. DATA or, where the peer has the base too, SAME for the other Chunks, as the window allows.
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
  bool has_base = false;
};

wire::Message offer_of(const ChunkStream& stream, std::vector<std::byte> record, const Base* base) {
  wire::Message offer;
  offer.kind = FrameKind::offer;
  offer.timeline = stream.options.timeline;
  offer.body = std::move(record);
  if (base == nullptr) return offer;
  CopyName name;
  name.shard = base->source.record->id;
  name.digest = base->digest;
  const std::vector<std::byte> front = encode(name);
  offer.kind = FrameKind::offer_changes;
  offer.body.insert(offer.body.begin(), front.begin(), front.end());
  return offer;
}

// Steps 1 and 2.
Task<Grant> make_offer(ChunkStream& stream, wire::Message offer, std::size_t chunks) {
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
  granted.has_base = answer.offset != 0;
  CKPT_CO_TRY(granted.have, ChunkSet::decode(answer.body, chunks));
  co_return granted;
}

Task<Delivery> send(ChunkStream& stream, SealedShard source, ChunkSet have) {
  CKPT_CO_TRY(const Sent sent, co_await send_chunks(stream, source, std::move(have)));
  if (sent.failure) co_return fail(*sent.failure);
  if (sent.refusal) {
    if (sent.refusal->code() != Errc::cancelled) co_return fail(*sent.refusal);
    co_return Delivery::declined;
  }
  co_return Delivery::applied;
}

Task<Delivery> deliver(wire::Connection& connection, Clock& clock, SealedShard source,
                       std::optional<Base> base, TransferOptions options) {
  CKPT_CO_CHECK(check_source(source));
  if (base) {
    CKPT_CO_CHECK(check_source(base->source));
  }
  std::vector<std::byte> encoded = encode(*source.record);
  ChunkStream stream{connection, clock, 0, digest_of(encoded), std::move(options)};
  const std::size_t chunks = source.record->chunk_crcs.size();
  wire::Message offer = offer_of(stream, std::move(encoded), base ? &*base : nullptr);
  auto granted = co_await make_offer(stream, std::move(offer), chunks);
  if (!granted) {
    connection.close();
    co_return fail(std::move(granted).error());
  }
  if (granted->refusal) {
    if (granted->refusal->code() != Errc::cancelled) co_return fail(*granted->refusal);
    co_return Delivery::declined;
  }
  stream.ticket = granted->ticket;
  if (granted->has_base && base) stream.base = std::move(base->source);
  base.reset();
  auto sent = co_await send(stream, std::move(source), std::move(granted.value().have));
  if (!sent || *sent != Delivery::applied) connection.close();
  co_return sent;
}

}  // namespace

Task<Delivery> send_shard(wire::Connection& connection, Clock& clock, SealedShard source,
                          TransferOptions options) {
  std::optional<Base> none;
  auto sent =
      co_await deliver(connection, clock, std::move(source), std::move(none), std::move(options));
  co_return sent;
}

Task<Delivery> send_changes(wire::Connection& connection, Clock& clock, SealedShard source,
                            Base base, TransferOptions options) {
  std::optional<Base> held(std::move(base));
  auto sent =
      co_await deliver(connection, clock, std::move(source), std::move(held), std::move(options));
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
