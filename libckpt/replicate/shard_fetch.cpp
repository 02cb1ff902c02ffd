#include "replicate/shard_fetch.hpp"

#include <fmt/format.h>

#include "base/assert.hpp"
#include "base/compute.hpp"
#include "base/units.hpp"
#include "format/codec.hpp"
#include "replicate/chunk_stream.hpp"

namespace ckpt::replicate {

namespace {

using wire::FrameKind;

// A larger record takes a fraction of a millisecond or more to decode: other threads do that.
constexpr std::size_t decoded_here_bytes_max = 32 * KiB;

// The body of FETCH_RECORD, and the start of the body of FETCH.
using FetchRequest = CopyName;

std::string name_of(const format::ShardId& shard) {
  return fmt::format("rank {}, step {} of timeline {}", shard.rank, number(shard.at.step),
                     shard.at.timeline);
}

Task<wire::Message> ask_record(ChunkStream& stream, FetchRequest wanted) {
  CKPT_CO_CHECK(co_await send_message(stream, FrameKind::fetch_record, encode(wanted)));
  const Time deadline = step_deadline(stream);
  CKPT_CO_TRY(auto answer, co_await wire::read_message(stream.connection, deadline));
  if (answer.kind != FrameKind::record && answer.kind != FrameKind::refuse)
    co_return fail(Errc::corruption,
                   fmt::format("fetch record from {}: it answered with {}",
                               stream.connection.remote(), to_string(answer.kind)));
  co_return answer;
}

Task<void> fetch(ChunkStream& stream, std::shared_ptr<const format::ShardRecord> record,
                 Destination target, ChunkSet have) {
  FetchRequest wanted;
  wanted.shard = record->id;
  wanted.digest = stream.digest;
  std::vector<std::byte> body = encode(wanted);
  const std::vector<std::byte> bitmap = have.encode();
  body.insert(body.end(), bitmap.begin(), bitmap.end());
  CKPT_CO_CHECK(co_await send_message(stream, FrameKind::fetch, std::move(body)));
  CKPT_CO_TRY(const Received arrived, co_await receive_chunks(stream, record, std::move(target),
                                                              std::move(have), std::nullopt));
  if (arrived.damaged_chunk) {
    const Error why(
        Errc::corruption,
        fmt::format("fetch {} from {}: chunk {} does not match its checksum", name_of(record->id),
                    stream.connection.remote(), *arrived.damaged_chunk));
    Error reason = why;
    // It ends when the holder has looked at its copy, which then is not asked for again.
    auto drained = co_await refuse_and_drain(stream, std::move(reason));
    static_cast<void>(drained);
    co_return fail(why);
  }
  format::Writer writer;
  writer.digest(stream.digest);
  CKPT_CO_CHECK(co_await send_message(stream, FrameKind::applied, writer.take()));
  co_return Status();
}

// A FETCH that was matched with a copy that we hold.
struct Order {
  FetchRequest wanted;
  SealedShard source;
  ChunkSet have;
};
Result<Order> take_order(const wire::Message& request, const std::string& job,
                         ShardProvider& provider) {
  if (request.body.size() < CopyName::encoded_bytes)
    return fail(Errc::corruption, "read fetch: it ends before it names a shard");
  const std::span<const std::byte> body(request.body);
  Order order;
  CKPT_TRY(order.wanted, decode_copy_name(body.first(CopyName::encoded_bytes)));
  CKPT_TRY(order.source, provider.lease(job, order.wanted.shard, order.wanted.digest));
  CKPT_CHECK(check_source(order.source));
  const std::size_t chunks = order.source.record->chunk_crcs.size();
  CKPT_TRY(order.have, ChunkSet::decode(body.subspan(CopyName::encoded_bytes), chunks));
  return order;
}

// The first of these Chunks that fails its checksum here.
Task<std::optional<std::size_t>> find_damage_in(std::vector<std::size_t> chunks, Compute* compute,
                                                SealedShard source) {
  for (const std::size_t index : chunks) {
    CKPT_CO_TRY(const bool is_good, co_await is_whole(compute, source, index));
    if (!is_good) co_return std::optional<std::size_t>(index);
  }
  co_return std::optional<std::size_t>();
}

Task<void> refuse_or_close(ChunkStream& stream, Error why) {
  auto refused = co_await refuse(stream, std::move(why));
  if (!refused) stream.connection.close();
  co_return refused;
}

}  // namespace

Task<std::shared_ptr<const format::ShardRecord>> fetch_record(wire::Connection& connection,
                                                              Clock& clock, format::ShardId shard,
                                                              Digest digest,
                                                              TransferOptions options) {
  ChunkStream stream{connection, clock, 0, digest, std::move(options)};
  FetchRequest wanted;
  wanted.shard = shard;
  wanted.digest = digest;
  auto answer = co_await ask_record(stream, wanted);
  if (!answer) {
    connection.close();
    co_return fail(std::move(answer).error());
  }
  if (answer->kind == FrameKind::refuse)
    co_return fail(wire::decode_refusal(answer->body, connection.remote()));
  const std::string doing =
      fmt::format("fetch record of {} from {}", name_of(shard), connection.remote());
  using Record = std::shared_ptr<const format::ShardRecord>;
  std::function<Result<Record>()> decode = [&]() -> Result<Record> {
    if (digest_of(answer->body) != digest)
      return fail(Errc::corruption, doing + ": it is not the one that was agreed on");
    auto record = format::decode_shard_record(answer->body);
    if (!record) return fail(std::move(record).error().context(doing));
    if (record->id != shard)
      return fail(Errc::corruption, doing + ": it is about " + name_of(record->id));
    return std::make_shared<const format::ShardRecord>(std::move(record).value());
  };
  if (answer->body.size() < decoded_here_bytes_max) co_return decode();
  auto record = co_await compute_on(stream.options.compute, std::move(decode));
  co_return record;
}

Task<void> fetch_shard(wire::Connection& connection, Clock& clock,
                       std::shared_ptr<const format::ShardRecord> record, Destination target,
                       ChunkSet have, TransferOptions options) {
  CKPT_ASSERT(target.has_room_for(record->bytes));
  CKPT_ASSERT(have.size() == record->chunk_crcs.size());
  const std::uint64_t ticket = 1;  // A connection has one request at a time.
  const Digest digest = options.record_digest ? *options.record_digest : digest_of(*record);
  ChunkStream stream{connection, clock, ticket, digest, std::move(options)};
  auto fetched = co_await fetch(stream, std::move(record), std::move(target), std::move(have));
  if (!fetched) connection.close();
  co_return fetched;
}

Task<void> serve_record(wire::Connection& connection, Clock& clock, std::string job,
                        wire::Message request, ShardProvider& provider, TransferOptions options) {
  ChunkStream stream{connection, clock, request.ticket, Digest(), std::move(options)};
  auto wanted = decode_copy_name(request.body);
  auto source =
      wanted ? provider.lease(job, wanted->shard, wanted->digest) : fail(std::move(wanted).error());
  if (!source) {
    CKPT_CO_CHECK(co_await refuse_or_close(stream, std::move(source).error()));
    co_return Status();
  }
  std::vector<std::byte> body;
  std::function<void()> encode = [&body, record = source->record] {
    body = format::encode(*record);
  };
  Status sent;
  if (source->record->layout.tensors.size() < tensors_worth_a_thread) {
    encode();
  } else {
    sent = co_await run_on(stream.options.compute, std::move(encode));
  }
  if (sent) sent = co_await send_message(stream, FrameKind::record, std::move(body));
  if (!sent) connection.close();
  co_return sent;
}

Task<void> serve_fetch(wire::Connection& connection, Clock& clock, std::string job,
                       wire::Message request, ShardProvider& provider, TransferOptions options) {
  ChunkStream stream{connection, clock, request.ticket, Digest(), std::move(options)};
  auto order = take_order(request, job, provider);
  if (!order) {
    CKPT_CO_CHECK(co_await refuse_or_close(stream, std::move(order).error()));
    co_return Status();
  }
  const FetchRequest wanted = order->wanted;
  stream.digest = wanted.digest;
  const SealedShard source = std::move(order.value().source);
  CKPT_CO_TRY(Sent sent, co_await send_chunks(stream, source, std::move(order.value().have)));
  if (!sent.refusal && !sent.failure) co_return Status();
  // The asker may have left because of damage. Noise on the way must not cost us a good copy: it
  // goes only if it is ours that is damaged.
  std::vector<std::size_t> doubtful = std::move(sent.unacknowledged);
  auto damage = co_await find_damage_in(std::move(doubtful), stream.options.compute, source);
  if (damage && *damage) provider.damaged(job, source, **damage);
  connection.close();
  co_return fail(sent.refusal ? std::move(*sent.refusal) : std::move(*sent.failure));
}

}  // namespace ckpt::replicate
