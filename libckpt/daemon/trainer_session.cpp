#include "daemon/trainer_session.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "wire/control_codec.hpp"

namespace ckpt::daemon {

namespace control = wire::control;

namespace {

// A trainer that a debugger holds may read late; what waits for it meanwhile is bounded.
constexpr Duration send_time = std::chrono::minutes(10);

}  // namespace

TrainerSession::TrainerSession(Clock& clock, std::shared_ptr<os::LocalConnection> connection,
                               Identity identity, os::Fd process)
    : clock_(clock),
      connection_(std::move(connection)),
      identity_(std::move(identity)),
      process_(std::move(process)),
      outgoing_changed_(clock) {}

std::string TrainerSession::name() const {
  return fmt::format("job={} rank={} pid={}", identity_.job, identity_.rank, identity_.pid);
}

void TrainerSession::attached(node::Engine& engine, const node::Attached& attached) {
  calls_.emplace(engine, attached.session);
  control::AttachAnswer answer;
  answer.session = static_cast<std::uint64_t>(attached.session);
  answer.run = attached.run;
  auto encoded = control::encode(answer);
  CKPT_ASSERT(encoded.has_value());
  outgoing_.push_front(std::move(*encoded));
  outgoing_changed_.notify_all();
}

Status TrainerSession::carry_out(control::Message message) {
  CKPT_ASSERT(calls_.has_value());
  return calls_->carry_out(std::move(message));
}

std::optional<node::SessionId> TrainerSession::session() const {
  if (!calls_) return std::nullopt;
  return calls_->session();
}

Status TrainerSession::watch(const asio::any_io_executor& executor, std::function<void()> gone) {
  CKPT_TRY(auto watch, os::ProcessWatch::start(executor, process_, std::move(gone)));
  watch_.emplace(std::move(watch));
  return {};
}

void TrainerSession::close_connection() {
  is_closed_ = true;
  outgoing_.clear();
  outgoing_changed_.notify_all();
  connection_->close();
}

DetachedTask TrainerSession::send_all(std::shared_ptr<TrainerSession> self) {
  Clock& clock = self->clock_;
  while (!self->is_closed_) {
    if (self->outgoing_.empty()) {
      auto woken = co_await self->outgoing_changed_.wait_until(no_deadline);
      if (!woken) co_return;
      continue;
    }
    os::LocalMessage message = std::move(self->outgoing_.front());
    self->outgoing_.pop_front();
    const Time deadline = clock.after(send_time);
    const std::shared_ptr<os::LocalConnection> connection = self->connection_;
    auto sent = co_await connection->send(std::move(message), deadline);
    if (!sent) {
      if (!self->is_closed_) log_info("{} cannot be told: {}", self->name(), sent.error().text());
      // Its last captures may lie in the stream, not read yet: who reads comes to its end.
      self->is_mute_ = connection->is_open();
      self->outgoing_.clear();
      if (!self->is_mute_) self->close_connection();
      co_return;
    }
  }
}

void TrainerSession::enqueue(control::Message message, std::vector<os::Fd> descriptors) {
  if (is_closed_ || is_mute_) return;
  auto encoded = control::encode(message);
  if (!encoded) {
    log_error("{} {}", name(), encoded.error().message());
    return close_connection();
  }
  if (outgoing_.size() >= outgoing_max) {
    log_warning("{} does not read, {} messages wait for it: its connection is closed", name(),
                outgoing_.size());
    return close_connection();
  }
  encoded->descriptors = std::move(descriptors);
  outgoing_.push_back(std::move(*encoded));
  outgoing_changed_.notify_all();
}

Status TrainerSession::enqueue_segments(std::uint32_t slot, std::uint64_t generation,
                                        arena::SlotMemory& memory) {
  const auto all = memory.segments();
  control::SlotSegments message;
  message.slot = slot;
  message.generation = generation;
  message.capacity = memory.bytes().size();
  message.count_of_all = static_cast<std::uint32_t>(all.size());
  for (std::size_t first = 0; first < all.size(); first += os::local_descriptors_max) {
    const std::size_t end = std::min(all.size(), first + os::local_descriptors_max);
    message.first = static_cast<std::uint32_t>(first);
    message.bytes.clear();
    std::vector<os::Fd> descriptors;
    for (std::size_t index = first; index < end; ++index) {
      // Ours to send: the engine may free the Slot before the trainer has read this.
      CKPT_TRY(auto fd, os::duplicate(all[index].fd));
      descriptors.push_back(std::move(fd));
      message.bytes.push_back(all[index].bytes);
    }
    enqueue(message, std::move(descriptors));
  }
  return {};
}

void TrainerSession::slots_ready(std::vector<arena::SlotMemory*> memories) {
  CKPT_POINT("slots.told");
  CKPT_ASSERT(calls_.has_value());  // The engine makes no Slots before a layout is set.
  const auto& generations = calls_->number_slots(memories);
  told_generations_.resize(memories.size());
  for (std::uint32_t slot = 0; slot < memories.size(); ++slot) {
    if (told_generations_[slot] == generations[slot]) continue;
    const Status status = enqueue_segments(slot, generations[slot], *memories[slot]);
    if (!status) return slots_failed(status.error());
    told_generations_[slot] = generations[slot];
  }
  enqueue(control::SlotsReady{static_cast<std::uint32_t>(memories.size())});
}

void TrainerSession::slots_failed(Error error) {
  enqueue(control::SlotsFailed{fail(std::move(error))});
}
void TrainerSession::slot_granted(std::uint32_t slot) {
  enqueue(control::Granted{slot});
}
void TrainerSession::next_capture(Step step) {
  enqueue(control::NextCapture{step});
}
void TrainerSession::level_reached(Step step, Level level) {
  enqueue(control::LevelReached{step, level});
}
void TrainerSession::step_dropped(Step step) {
  enqueue(control::StepDropped{step});
}

void TrainerSession::restore_filling(node::Filling filling) {
  enqueue(control::Filling{filling.bytes, filling.bytes_total, std::move(filling.source_name)});
}

void TrainerSession::restore_offered(node::SlotOffer offer) {
  control::Offer message;
  message.ask = offer.ask;
  message.offer = offer.offer;
  message.slot = offer.slot;
  message.source = offer.source;
  message.source_name = std::move(offer.source_name);
  message.record = std::move(offer.record);
  enqueue(std::move(message));
}

void TrainerSession::begun(node::Begun begun) {
  control::Begun message;
  message.ask = begun.ask;
  message.start_id = begun.start_id;
  message.timeline = begun.timeline;
  message.restored = begun.restored;
  message.reason = std::move(begun.reason);
  if (begun.error) message.result = fail(std::move(*begun.error));
  enqueue(std::move(message));
}

void TrainerSession::closed(Status status) {
  enqueue(control::Closed{std::move(status)});
}
void TrainerSession::fenced(std::string reason) {
  enqueue(control::Fenced{std::move(reason)});
}
void TrainerSession::noticed(node::Notice notice) {
  enqueue(control::Notice{std::move(notice.waiting), std::move(notice.degraded),
                          std::move(notice.unstorable)});
}
void TrainerSession::status_told(std::string json) {
  control::Answer answer;
  answer.json = std::move(json);
  enqueue(std::move(answer));
}

}  // namespace ckpt::daemon
