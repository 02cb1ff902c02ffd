#include "node/session_calls.hpp"

#include <fmt/format.h>

#include "base/overloaded.hpp"
#include "base/random.hpp"
#include "wire/secret.hpp"

namespace ckpt::node {

namespace control = wire::control;

namespace {

std::string to_string(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Result<AttachRequest> make_request(const control::Attach& attach) {
  if (attach.nodes.empty()) return fail(Errc::invalid_argument, "attach: without any node");
  AttachRequest request;
  request.job = attach.job;
  request.dir = attach.dir;
  request.rank = attach.rank;
  request.world_size = attach.world_size;
  request.nodes = attach.nodes;
  request.node = attach.node;
  request.incarnation = attach.incarnation;
  request.save_mem_interval = attach.save_mem_interval;
  request.save_storage_interval = attach.save_storage_interval;
  request.max_ckpt_num = attach.max_ckpt_num;
  request.replicas = attach.replicas;
  request.own_slots = attach.own_slots;
  request.flush_rate = attach.flush_rate;
  request.replica_rate = attach.replica_rate;
  if (attach.has_continuation)
    request.continuation = Continuation{attach.start_id, attach.timeline};
  return request;
}

Result<std::string> read_secret(const control::Attach& attach) {
  if (attach.secret_file.empty()) return std::string();
  CKPT_TRY(const auto secret, wire::Secret::read_file(attach.secret_file));
  return to_string(secret.bytes());
}

SessionCalls::SessionCalls(Engine& engine, SessionId session)
    : engine_(engine), session_(session), next_generation_(random_from_system()) {}

const std::vector<std::uint64_t>& SessionCalls::number_slots(
    const std::vector<arena::SlotMemory*>& memories) {
  generations_.resize(memories.size());
  memories_.resize(memories.size());
  for (std::size_t index = 0; index < memories.size(); ++index) {
    // A Slot is replaced only by a bigger one, so the size tells, even where the address is reused.
    const std::span<std::byte> memory = memories[index]->bytes();
    const auto& before = memories_[index];
    if (before.data() == memory.data() && before.size() == memory.size()) continue;
    generations_[index] = next_generation_++;
    memories_[index] = memory;
  }
  return generations_;
}

bool SessionCalls::is_current(std::uint32_t slot, std::uint64_t generation) const {
  return slot < generations_.size() && generations_[slot] == generation;
}

Status SessionCalls::call(const control::Begin& begin) {
  if (!is_current(begin.slot, begin.generation)) return engine_.skipped(session_, begin.step);
  Status begun = engine_.begin(session_, begin.slot, begin.step);
  // Without a begin there will be no capture: the other ranks must not wait for it.
  if (!begun) (void)engine_.skipped(session_, begin.step);
  return begun;
}

Status SessionCalls::call(control::FilledSlot& it) {
  // Its begin was skipped, or its Slot went with the ones that a bigger layout replaced.
  if (!is_current(it.slot, it.generation)) return engine_.skipped(session_, it.step);
  Filled filled;
  filled.slot = it.slot;
  filled.step = it.step;
  filled.layout_version = it.layout_version;
  filled.blob_bytes = it.blob_bytes;
  filled.blobs = std::move(it.blobs);
  filled.blob_names = std::move(it.blob_names);
  filled.chunk_bytes = it.chunk_bytes;
  filled.chunk_crcs = std::move(it.chunk_crcs);
  return engine_.filled(session_, std::move(filled));
}

Status SessionCalls::carry_out(control::Message message) {
  return std::visit(
      Overloaded{
          [&](control::SetLayout& it) {
            return engine_.set_layout(session_, std::move(it.layout));
          },
          [&](control::Begin& it) { return call(it); },
          [&](control::FilledSlot& it) { return call(it); },
          [&](control::Abandon& it) {
            if (!is_current(it.slot, it.generation)) return Status();
            return engine_.abandon(session_, it.slot);
          },
          [&](control::Arrived& it) {
            if (!is_current(it.slot, it.generation)) return Status();
            return engine_.arrived(session_, it.slot, it.bytes);
          },
          [&](control::Skipped& it) { return engine_.skipped(session_, it.step); },
          [&](control::StepTime& it) {
            return engine_.step_time(session_, {it.steps, it.time, it.during_capture});
          },
          [&](control::StartFresh& it) { return engine_.start_fresh(session_, it.ask); },
          [&](control::AskRestore& it) { return engine_.ask_restore(session_, it.ask, it.wanted); },
          [&](control::RestoreResult& it) {
            return engine_.restore_result(session_, it.offer, std::move(it.result));
          },
          [&](control::RestoredOk& it) { return engine_.restored_ok(session_, it.step); },
          [&](control::Flush& it) { return engine_.flush(session_, it.step); },
          [&](control::AskStatus&) { return engine_.ask_status(session_); },
          [&](control::Close& it) { return engine_.close(session_, it.deadline); },
          [&](auto&) -> Status {
            return fail(Errc::invalid_argument,
                        fmt::format("{} is no call of a trainer", control::name_of(message)));
          },
      },
      message);
}

}  // namespace ckpt::node
