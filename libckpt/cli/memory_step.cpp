#include "cli/memory_step.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/daemon_talk.hpp"
#include "node/lent_step.hpp"
#include "storage/checkpoint_name.hpp"
#include "storage/places.hpp"
#include "wire/control_codec.hpp"

namespace ckpt::cli {

namespace control = wire::control;

namespace {

// A daemon may have to ask another node, or to read from storage.
constexpr Duration chunks_time = std::chrono::minutes(5);

template <class Answer>
Result<Answer> answer_in(control::Message message) {
  auto* answer = std::get_if<Answer>(&message);
  if (answer == nullptr)
    return fail(Errc::corruption, fmt::format("the daemon answered {} with {}", Answer::kind.name,
                                              control::name_of(message)));
  if (!answer->result) return fail(std::move(answer->result).error());
  return std::move(*answer);
}

}  // namespace

bool is_memory_path(std::string_view path) {
  return path.starts_with(memory_prefix);
}

Result<MemoryPath> parse_memory_path(std::string_view path) {
  MemoryPath parsed;
  std::string_view rest = path.substr(memory_prefix.size());
  if (const auto slash = rest.rfind('/'); slash != std::string_view::npos) {
    const std::string_view name = rest.substr(slash + 1);
    const auto step = storage::step_named(name);
    if (step && storage::checkpoint_name(*step) == name) parsed.step = step;
    if (parsed.step) rest = rest.substr(0, slash);
  }
  parsed.job = rest;
  if (parsed.job.empty() || parsed.job.ends_with('/'))
    return fail(Errc::invalid_argument,
                fmt::format("\"{}\": a step in memory is memory:JOB, or "
                            "memory:JOB/step-000000900; `ckpt status` lists the jobs",
                            path));
  return parsed;
}

Status refuse_memory_path(std::string_view path, std::string_view what) {
  if (!is_memory_path(path)) return {};
  return fail(Errc::invalid_argument,
              fmt::format("{} {}: this needs a directory or a bucket; `ckpt status` shows what is "
                          "in memory",
                          what, path));
}

Status refuse_two_places(std::string_view path, std::string_view what) {
  if (path.empty()) return {};
  const auto places = storage::parse_places(path);
  if (!places) return fail(Error(places.error()));
  if (!places->second) return {};
  return fail(Errc::invalid_argument,
              fmt::format("{} \"{}\": this needs one place; run it for {} or for {}", what, path,
                          places->first, places->second->directory));
}

MemoryStep::MemoryStep(Clock& clock, os::LocalConnection connection)
    : clock_(clock), connection_(std::move(connection)), turn_ended_(clock) {}

Task<std::unique_ptr<MemoryStep>> MemoryStep::open(Clock& clock, std::string runtime_dir,
                                                   MemoryPath path) {
  CKPT_CO_TRY(auto directory, daemon_directory(runtime_dir));
  CKPT_CO_TRY(auto connection, co_await connect_daemon(clock, std::move(directory)));
  std::unique_ptr<MemoryStep> step(new MemoryStep(clock, std::move(connection)));
  CKPT_CO_CHECK(co_await step->begin(std::move(path)));
  co_return std::move(step);
}

Task<void> MemoryStep::begin(MemoryPath path) {
  control::Message question = control::OpenHeld{path.job, path.step};
  CKPT_CO_CHECK(co_await send(std::move(question)));
  CKPT_CO_TRY(auto message, co_await receive());
  CKPT_CO_TRY(const auto held, answer_in<control::HeldStep>(std::move(message)));
  if (held.digests.empty()) co_return fail(Errc::corruption, "the daemon's step has no ranks");
  CKPT_CO_TRY(timelines_, format::parse_timelines(held.timelines));
  directory_ = held.directory;
  auto manifest = std::make_shared<format::Manifest>();
  manifest->job = path.job;
  manifest->run = held.run;
  manifest->at = held.at;
  manifest->world_size = static_cast<std::uint32_t>(held.digests.size());
  manifest->members = held.members;
  manifest->nodes = held.nodes;
  for (std::uint32_t rank = 0; rank < manifest->world_size; ++rank) {
    format::ManifestShard shard;
    shard.rank = rank;
    shard.record_digest = held.digests[rank];
    manifest->shards.push_back(std::move(shard));
  }
  manifest_ = std::move(manifest);
  co_return Status();
}

Task<void> MemoryStep::take_turn() {
  while (is_talking_) {
    auto woken = co_await turn_ended_.wait_until(no_deadline);
    if (!woken) co_return fail(std::move(woken).error());
  }
  is_talking_ = true;
  co_return Status();
}

Task<void> MemoryStep::send(control::Message message) {
  CKPT_CO_TRY(auto encoded, control::encode(message));
  const Time deadline = clock_.after(answer_time);
  Status sent = co_await connection_.send(std::move(encoded), deadline);
  co_return sent;
}

Task<control::Message> MemoryStep::receive() {
  const Time deadline = clock_.after(chunks_time);
  auto message = co_await connection_.receive(deadline);
  if (!message) co_return fail(std::move(message).error().context("read a step in memory"));
  co_return control::decode(*message);
}

Task<std::shared_ptr<const format::ShardRecord>> MemoryStep::whole_record(std::uint32_t rank) {
  CKPT_CO_CHECK(co_await take_turn());
  control::Message question = control::AskRecord{rank};
  Status sent = co_await send(std::move(question));
  Result<control::Message> message = fail(Errc::unavailable, "");
  if (sent) message = co_await receive();
  is_talking_ = false;
  turn_ended_.notify_all();
  CKPT_CO_CHECK(std::move(sent));
  if (!message) co_return fail(std::move(message).error());
  CKPT_CO_TRY(const auto held, answer_in<control::HeldRecord>(std::move(*message)));
  CKPT_CO_TRY(auto record, format::decode_shard_record(held.record));
  const format::ShardId id{manifest_->at, rank};
  const bool is_it =
      record.id == id && format::digest_of(record) == manifest_->shards.at(rank).record_digest;
  if (!is_it)
    co_return fail(Errc::corruption,
                   fmt::format("read rank {} of step {} in memory: the daemon sent the record of "
                               "another copy",
                               rank, number(id.at.step)));
  co_return std::make_shared<const format::ShardRecord>(std::move(record));
}

Task<gather::Excerpt> MemoryStep::look(std::uint32_t rank, std::vector<std::string> names) {
  gather::Excerpt excerpt;
  CKPT_CO_TRY(excerpt.record, co_await whole_record(rank));
  for (const format::TensorPlace& tensor : excerpt.record->layout.tensors)
    if (format::is_among(names, tensor.name, tensor.piece, tensor.shape))
      excerpt.tensors.push_back(tensor);
  co_return excerpt;
}

Task<void> MemoryStep::read(std::shared_ptr<const format::ShardRecord> record,
                            std::vector<std::size_t> chunks, gather::ChunkSink sink,
                            const storage::TransferHooks& hooks) {
  std::ranges::sort(chunks);
  for (std::size_t begin = 0; begin < chunks.size(); begin += node::lent_chunks_max) {
    const auto first = chunks.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto count = std::min(node::lent_chunks_max, chunks.size() - begin);
    std::vector<std::size_t> some(first, first + static_cast<std::ptrdiff_t>(count));
    CKPT_CO_CHECK(co_await take_turn());
    Status read = co_await read_some(record, std::move(some), sink);
    if (!read) connection_.close();  // More answers may be on their way.
    is_talking_ = false;
    turn_ended_.notify_all();
    CKPT_CO_CHECK(std::move(read));
    if (hooks.verified) hooks.verified(0);
  }
  co_return Status();
}

Task<void> MemoryStep::read_some(std::shared_ptr<const format::ShardRecord> record,
                                 std::vector<std::size_t> chunks, const gather::ChunkSink& sink) {
  control::AskChunks ask;
  ask.rank = record->id.rank;
  ask.chunks.assign(chunks.begin(), chunks.end());
  control::Message question = std::move(ask);
  CKPT_CO_CHECK(co_await send(std::move(question)));
  for (const std::size_t index : chunks) {
    CKPT_CO_TRY(auto message, co_await receive());
    CKPT_CO_TRY(const auto held, answer_in<control::HeldChunk>(std::move(message)));
    const bool is_good = held.bytes.size() == record->chunk(index).bytes &&
                         crc32(held.bytes) == record->chunk_crcs.at(index);
    if (!is_good)
      co_return fail(Errc::corruption,
                     fmt::format("read rank {} of step {} in memory: chunk {} does not match its "
                                 "checksum",
                                 record->id.rank, number(record->id.at.step), index));
    sink.take(index, held.bytes);
  }
  co_return Status();
}

}  // namespace ckpt::cli
