#include "replicate/chunk_stream.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "base/assert.hpp"
#include "base/started.hpp"
#include "format/codec.hpp"
#include "replicate/unchanged.hpp"

namespace ckpt::replicate {

namespace {

using wire::FrameKind;

// Long enough to be worth a change of threads, and still in a cache when it is hashed.
constexpr std::size_t slice_bytes = MiB;

wire::FrameHeader header_of(const ChunkStream& stream, FrameKind kind) {
  wire::FrameHeader header;
  header.kind = kind;
  header.ticket = stream.ticket;
  header.timeline = stream.options.timeline;
  return header;
}

Crc32 checksum_of(const std::vector<os::FileSpan>& parts) {
  Crc32 crc = 0;
  for (const os::FileSpan& part : parts) crc = crc32(part.bytes, crc);
  return crc;
}

class Sender {
 public:
  Sender(ChunkStream& stream, SealedShard source) : stream_(stream), source_(std::move(source)) {}

  Task<void> make_room(std::uint64_t bytes);
  Task<void> send_chunk(std::size_t index, std::vector<os::FileSpan> parts);
  Task<void> name_chunk(std::size_t index);
  // Waits until every Chunk that was sent is acknowledged.
  Task<void> settle();
  Task<void> await_applied();
  // The peer's refusal, if it ended one of the waits above.
  const std::optional<Error>& refusal() const { return refusal_; }
  // Chunks that were sent and not acknowledged, in the order of sending.
  const std::deque<std::size_t>& in_flight() const { return in_flight_; }

 private:
  Task<bool> read_answer();  // Returns true for APPLIED.

  ChunkStream& stream_;
  SealedShard source_;
  std::uint64_t sent_bytes_ = 0;
  std::uint64_t applied_bytes_ = 0;
  std::deque<std::size_t> in_flight_;
  std::optional<Error> refusal_;
};

Task<bool> Sender::read_answer() {
  CKPT_CO_TRY(const wire::Message answer,
              co_await wire::read_message(stream_.connection, step_deadline(stream_),
                                          wire::handshake_body_bytes_max));
  const std::string remote = stream_.connection.remote();
  if (answer.kind == FrameKind::refuse) {
    refusal_ = wire::decode_refusal(answer.body, remote);
    co_return fail(*refusal_);
  }
  if (answer.ticket != stream_.ticket)
    co_return fail(Errc::corruption, fmt::format("send shard to {}: it answered {} for another "
                                                 "transfer",
                                                 remote, to_string(answer.kind)));
  if (answer.kind == FrameKind::applied) {
    format::Reader reader(answer.body, "applied");
    const Digest digest = reader.digest();
    CKPT_CO_CHECK(reader.finish());
    if (digest != stream_.digest)
      co_return fail(Errc::corruption, "send shard to " + remote + ": it applied another shard");
    co_return true;
  }
  const bool is_forward = answer.offset > applied_bytes_ && answer.offset <= sent_bytes_;
  if (answer.kind != FrameKind::progress || !is_forward || in_flight_.empty())
    co_return fail(Errc::corruption, fmt::format("send shard to {}: it answered {} out of turn",
                                                 remote, to_string(answer.kind)));
  applied_bytes_ = answer.offset;
  in_flight_.pop_front();
  co_return false;
}

Task<void> Sender::make_room(std::uint64_t bytes) {
  while (in_flight_.size() >= chunks_in_flight_max ||
         (!in_flight_.empty() &&
          sent_bytes_ - applied_bytes_ + bytes > stream_.options.window_bytes)) {
    CKPT_CO_TRY(const bool is_applied, co_await read_answer());
    if (is_applied) co_return fail(Errc::corruption, "send shard: applied before all was sent");
  }
  co_return Status();
}

Task<void> Sender::settle() {
  while (!in_flight_.empty()) {
    CKPT_CO_TRY(const bool is_applied, co_await read_answer());
    if (is_applied) co_return fail(Errc::corruption, "send shard: applied before all was sent");
  }
  co_return Status();
}

Task<void> Sender::await_applied() {
  CKPT_CO_CHECK(co_await settle());
  CKPT_CO_TRY(const bool is_applied, co_await read_answer());
  CKPT_ASSERT(is_applied);
  co_return Status();
}

Task<void> Sender::send_chunk(std::size_t index, std::vector<os::FileSpan> parts) {
  const format::Extent extent = source_.record->chunk(index);
  wire::FrameHeader header = header_of(stream_, FrameKind::data);
  header.offset = extent.offset;
  header.body_bytes = static_cast<std::uint32_t>(extent.bytes);
  header.body_crc = source_.record->chunk_crcs[index];
  const wire::FrameHeaderBytes head = encode_header(header);
  const std::span<const std::byte> head_bytes(head);
  CKPT_CO_CHECK(co_await stream_.connection.write(head_bytes, step_deadline(stream_)));
  const std::shared_ptr<Throttle> throttle = stream_.options.throttle;
  for (const os::FileSpan& part : parts) {
    // In pieces, since the peer closes a stream on which nothing arrives for long.
    if (throttle) {
      CKPT_CO_CHECK(co_await throttle->take(part.bytes.size()));
    }
    CKPT_CO_CHECK(co_await stream_.connection.write_file(part, step_deadline(stream_)));
  }
  sent_bytes_ += extent.bytes;
  in_flight_.push_back(index);
  co_return Status();
}

// Counts as sent: the peer acknowledges it in the same way.
Task<void> Sender::name_chunk(std::size_t index) {
  const format::Extent extent = source_.record->chunk(index);
  wire::FrameHeader header = header_of(stream_, FrameKind::same);
  header.offset = extent.offset;
  const wire::FrameHeaderBytes head = encode_header(header);
  const std::span<const std::byte> head_bytes(head);
  CKPT_CO_CHECK(co_await stream_.connection.write(head_bytes, step_deadline(stream_)));
  sent_bytes_ += extent.bytes;
  in_flight_.push_back(index);
  co_return Status();
}

// Returns the Chunk that a DATA or SAME frame announces. Its body is not read yet: a frame that
// does not fit leaves the Slot untouched.
Result<std::size_t> check_data(const wire::FrameHeader& header, const ChunkStream& stream,
                               const format::ShardRecord& record, const ChunkSet& have,
                               std::optional<std::uint64_t> timeline) {
  const auto wrong = [&](std::string_view what) {
    return fail(Errc::corruption,
                fmt::format("receive shard from {}: a chunk {} (ticket {}, offset {}, {} bytes)",
                            stream.connection.remote(), what, header.ticket, header.offset,
                            header.body_bytes));
  };
  if (header.ticket != stream.ticket) return wrong("of another transfer");
  if (timeline && header.timeline != *timeline) return wrong("of another timeline");
  if (header.offset % record.chunk_bytes != 0) return wrong("that begins within another");
  const std::uint64_t index = header.offset / record.chunk_bytes;
  if (index >= have.size()) return wrong("beyond the shard's end");
  if (have.contains(index)) return wrong("that is here already");
  if (header.kind == FrameKind::same) {
    const bool is_known = stream.base && may_be_same(record, *stream.base->record, index);
    if (!is_known) return wrong("that no earlier step here has");
    return static_cast<std::size_t>(index);
  }
  if (header.body_bytes != record.chunk(index).bytes) return wrong("of another length");
  if (header.body_crc != record.chunk_crcs[index]) return wrong("with another checksum");
  return static_cast<std::size_t>(index);
}

Task<void> read_slice(ChunkStream& stream, std::span<std::byte> slice) {
  for (std::size_t at = 0; at < slice.size(); at += piece_bytes) {
    const auto piece = slice.subspan(at, std::min(piece_bytes, slice.size() - at));
    CKPT_CO_CHECK(co_await stream.connection.read(piece, step_deadline(stream)));
  }
  co_return Status();
}

// Returns the checksum of each place. That of a slice is computed while the next slice arrives.
Task<std::vector<Crc32>> read_chunk(ChunkStream& stream, Destination::Places places) {
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  std::vector<Crc32> crcs(places.size());
  std::size_t hashed = 0;  // The place that `hashing` is about.
  std::optional<Started<Crc32>> hashing;
  for (std::size_t number = 0; number < places.size(); ++number) {
    const std::span<std::byte> place = places[number];
    for (std::size_t at = 0; at < place.size(); at += slice_bytes) {
      const auto slice = place.subspan(at, std::min(slice_bytes, place.size() - at));
      const Status read = co_await read_slice(stream, slice);
      if (hashing) {  // Awaited after a failure, too: the caller may then give the memory away.
        CKPT_CO_TRY(crcs[hashed], co_await hashing->result());
      }
      CKPT_CO_CHECK(read);
      hashed = number;
      hashing.emplace(executor, stream.clock,
                      crc32_on(stream.options.compute, slice, crcs[number]));
    }
  }
  if (hashing) {
    CKPT_CO_TRY(crcs[hashed], co_await hashing->result());
  }
  co_return crcs;
}

Crc32 checksum_of(const Destination::Places& places, std::span<const Crc32> crcs) {
  Crc32 all = 0;
  for (std::size_t number = 0; number < places.size(); ++number)
    all = crc32_combine(all, crcs[number], places[number].size());
  return all;
}

Task<wire::FrameHeader> read_data_header(ChunkStream& stream) {
  CKPT_CO_TRY(const wire::FrameHeader header,
              co_await wire::read_header(stream.connection, step_deadline(stream)));
  if (header.kind == FrameKind::data || header.kind == FrameKind::same) co_return header;
  const std::string remote = stream.connection.remote();
  if (header.kind != FrameKind::refuse)
    co_return fail(Errc::corruption, fmt::format("receive shard from {}: {} instead of data",
                                                 remote, to_string(header.kind)));
  CKPT_CO_TRY(const auto body,
              co_await wire::read_body(stream.connection, header, step_deadline(stream)));
  co_return fail(wire::decode_refusal(body, remote));
}

}  // namespace

Time step_deadline(const ChunkStream& stream) {
  return std::min(stream.options.deadline, stream.clock.after(stream.options.stall));
}

Task<void> send_message(ChunkStream& stream, FrameKind kind, std::vector<std::byte> body,
                        std::uint64_t offset) {
  wire::Message message;
  message.kind = kind;
  message.ticket = stream.ticket;
  message.timeline = stream.options.timeline;
  message.offset = offset;
  message.body = std::move(body);
  const Time deadline = step_deadline(stream);
  CKPT_CO_CHECK(co_await wire::write_message(stream.connection, std::move(message), deadline));
  co_return Status();
}

Task<void> refuse(ChunkStream& stream, Error why) {
  wire::Refusal refusal;
  refusal.code = why.code();
  refusal.reason = why.text();
  Status sent = co_await send_message(stream, FrameKind::refuse, encode(refusal));
  co_return sent;
}

Task<void> refuse_and_drain(ChunkStream& stream, Error why) {
  CKPT_CO_CHECK(co_await refuse(stream, std::move(why)));
  std::vector<std::byte> thrown_away(piece_bytes);
  const Time deadline = step_deadline(stream);
  for (;;) {
    CKPT_CO_TRY(const wire::FrameHeader header,
                co_await wire::read_header(stream.connection, deadline));
    for (std::size_t left = header.body_bytes; left > 0;) {
      const auto piece = std::span(thrown_away).first(std::min(left, thrown_away.size()));
      CKPT_CO_CHECK(co_await stream.connection.read(piece, deadline));
      left -= piece.size();
    }
  }
}

Status check_source(const SealedShard& source) {
  CKPT_ASSERT(source.record != nullptr);
  std::uint64_t bytes = 0;
  for (const os::FileSpan& span : source.spans) bytes += span.bytes.size();
  if (bytes < source.record->bytes)
    return fail(Errc::invalid_argument, fmt::format("send shard: {} bytes, and its record says {}",
                                                    bytes, source.record->bytes));
  return Status();
}

Task<bool> is_whole(Compute* compute, SealedShard source, std::size_t index) {
  const auto parts = parts_of(source, index);
  Crc32 crc = 0;
  std::function<void()> hash = [&crc, &parts] { crc = checksum_of(parts); };
  CKPT_CO_CHECK(co_await run_on(compute, std::move(hash)));
  co_return crc == source.record->chunk_crcs[index];
}

namespace {

std::size_t next_missing(const ChunkSet& have, std::size_t index) {
  while (index < have.size() && have.contains(index)) ++index;
  return index;
}

Task<void> send_missing(ChunkStream& stream, Sender& sender, SealedShard source, ChunkSet have) {
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  // On the Chunk that is sent next. It holds the sources.
  std::optional<Started<bool>> comparison;
  const auto begin_comparison = [&](std::size_t index) {
    comparison.reset();
    if (index == have.size() || !stream.base) return;
    if (!may_be_same(*source.record, *stream.base->record, index)) return;
    comparison.emplace(executor, stream.clock,
                       is_same(stream.options.compute, source, *stream.base, index));
  };
  std::size_t next = next_missing(have, 0);
  begin_comparison(next);
  while (next < have.size()) {
    const std::size_t index = next;
    bool is_named = false;
    if (comparison) {
      CKPT_CO_TRY(is_named, co_await comparison->result());
    }
    next = next_missing(have, index + 1);
    begin_comparison(next);  // It ends while this Chunk is sent.
    const format::Extent extent = source.record->chunk(index);
    CKPT_CO_CHECK(co_await sender.make_room(extent.bytes));
    if (is_named) {
      CKPT_CO_CHECK(co_await sender.name_chunk(index));
      if (stream.options.on_same) stream.options.on_same(index);
      continue;
    }
    std::vector<os::FileSpan> parts = parts_of(source, index);
    CKPT_CO_CHECK(co_await sender.send_chunk(index, std::move(parts)));
    if (stream.options.on_chunk) stream.options.on_chunk(index);
  }
  auto applied = co_await sender.await_applied();
  co_return applied;
}

}  // namespace

Task<Sent> send_chunks(ChunkStream& stream, SealedShard source, ChunkSet have) {
  Sender sender(stream, source);
  auto came = co_await send_missing(stream, sender, std::move(source), std::move(have));
  Sent sent;
  if (came) co_return sent;
  sent.refusal = sender.refusal();
  if (!sent.refusal) sent.failure.emplace(std::move(came).error());
  sent.unacknowledged.assign(sender.in_flight().begin(), sender.in_flight().end());
  co_return sent;
}

Task<Received> receive_chunks(ChunkStream& stream,
                              std::shared_ptr<const format::ShardRecord> record, Destination target,
                              ChunkSet have, std::optional<std::uint64_t> timeline) {
  CKPT_ASSERT(have.size() == record->chunk_crcs.size());
  CKPT_ASSERT(have.is_full() || target.has_room_for(record->bytes));
  Received outcome;
  std::uint64_t verified_bytes = 0;
  while (!have.is_full()) {
    CKPT_CO_TRY(const wire::FrameHeader header, co_await read_data_header(stream));
    CKPT_CO_TRY(const std::size_t index, check_data(header, stream, *record, have, timeline));
    const format::Extent extent = record->chunk(index);
    const auto places = target.places(index, extent);
    const Crc32 expected = record->chunk_crcs[index];
    const bool is_named = header.kind == FrameKind::same;
    bool is_good = false;
    if (is_named) {
      CKPT_ASSERT(places.size() == 1);  // Copies alone have a base, and go into a Slot.
      CKPT_CO_TRY(is_good, co_await copy_same(stream.options.compute, *stream.base, index,
                                              places.front(), expected));
    } else {
      CKPT_CO_TRY(auto crcs, co_await read_chunk(stream, places));
      is_good = checksum_of(places, crcs) == expected;
      if (is_good) CKPT_CO_CHECK(co_await target.placed(index, std::move(crcs)));
    }
    if (!is_good) {
      outcome.damaged_chunk = index;
      outcome.is_base_damaged = is_named;
      break;
    }
    have.insert(index);
    verified_bytes += extent.bytes;
    if (stream.options.on_chunk) stream.options.on_chunk(index);
    wire::FrameHeader progress = header_of(stream, FrameKind::progress);
    progress.offset = verified_bytes;
    const wire::FrameHeaderBytes bytes = encode_header(progress);
    const std::span<const std::byte> frame(bytes);
    CKPT_CO_CHECK(co_await stream.connection.write(frame, step_deadline(stream)));
  }
  outcome.have = std::move(have);
  co_return outcome;
}

}  // namespace ckpt::replicate
