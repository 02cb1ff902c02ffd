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

// A trainer that a debugger holds may read late; its waiting messages are bounded.
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

void TrainerSession::attached(const node::Attached& attached) {
  session_ = attached.session;
  control::AttachAnswer answer;
  answer.session = static_cast<std::uint64_t>(attached.session);
  answer.run = attached.run;
  auto encoded = control::encode(answer);
  CKPT_ASSERT(encoded.has_value());
  outgoing_.push_front(std::move(*encoded));
  outgoing_changed_.notify_all();
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
      if (!self->is_closed_) log_info("{} gets no messages: {}", self->name(), sent.error().text());
      // Its last captures may lie in the stream, not read yet: a reader comes to its end.
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

Status TrainerSession::enqueue_segments(std::uint32_t slot, const node::ReadySlot& ready) {
  const auto all = ready.memory->segments();
  control::SlotSegments message;
  message.slot = slot;
  message.generation = ready.generation;
  message.capacity = ready.memory->bytes().size();
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

void TrainerSession::slots_ready(std::vector<node::ReadySlot> slots) {
  CKPT_POINT("slots.told");
  sent_generations_.resize(slots.size());
  for (std::uint32_t slot = 0; slot < slots.size(); ++slot) {
    if (sent_generations_[slot] == slots[slot].generation) continue;
    Status status = enqueue_segments(slot, slots[slot]);
    if (!status) return tell(control::SlotsFailed{std::move(status)});
    sent_generations_[slot] = slots[slot].generation;
  }
  const auto for_captures =
      std::ranges::find_if(slots, [](const node::ReadySlot& slot) { return slot.is_for_restore; });
  enqueue(control::SlotsReady{static_cast<std::uint32_t>(slots.size()),
                              static_cast<std::uint32_t>(for_captures - slots.begin())});
}

void TrainerSession::tell(control::Event event) {
  enqueue(control::to_message(std::move(event)));
}

}  // namespace ckpt::daemon
