// The steps of one connection. After a failure of any: lose(), a pause, and step 1 again.
//
//   1. Connect, and start the daemon if none runs.
//   2. Hello both ways: versions are compared before anything else is sent.
//   3. Attach, as a new session or as the continuation of the one before.
//   4. Send the remembered messages: the layout, and requests without an answer.
//   5. Receive until the stream ends; sending goes on beside it.
#include "client/daemon_link.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "base/spawn.hpp"
#include "base/units.hpp"
#include "client/attach_message.hpp"
#include "client/daemon_budget.hpp"
#include "os/small_file.hpp"
#include "wire/control_codec.hpp"

namespace ckpt::client {

namespace {

constexpr Duration hello_time = std::chrono::seconds(5);
// The first attach reads the job's directory, which may lie on a slow file system.
constexpr Duration attach_time = std::chrono::seconds(60);
constexpr Duration reconnect_time = std::chrono::seconds(30);
constexpr Duration send_time = std::chrono::minutes(10);  // To a daemon that is stopped, or hangs.
constexpr Duration goodbye_time = std::chrono::seconds(1);
constexpr std::size_t ready_bytes_max = 64 * KiB;

// Whether the next attempt may succeed. A caller of open learns at once of errors that it can fix;
// in mid-run, patience costs nothing.
bool may_pass(const Error& error, bool was_attached) {
  switch (error.code()) {
    case Errc::unavailable:
    case Errc::cancelled:
      return true;
    case Errc::not_found:
    case Errc::io:
    case Errc::exhausted:
      return was_attached;
    default:
      return false;
  }
}

}  // namespace

DaemonLink::DaemonLink(const Options& options, os::RuntimeDirectory directory,
                       control::Attach attach, std::shared_ptr<LinkState> state,
                       Deadline open_deadline)
    : state_(std::move(state)),
      attach_(std::move(attach)),
      clock_(make_system_clock(thread_.executor())),
      daemon_log_(directory.log()),
      start_(*clock_, options, std::move(directory)),
      open_deadline_(clock_->after(open_deadline - std::chrono::steady_clock::now())),
      prefault_threads_(static_cast<int>(std::clamp<std::uint32_t>(options.copy_threads, 1, 4))),
      outgoing_changed_(*clock_),
      silence_(
          *clock_, [this] { enqueue(control::AskStatus{}); },
          [this](bool is_silent) { report_silence(is_silent); }) {}

void DaemonLink::start() {
  run_detached(thread_.executor(), run());
  thread_.start();
}

DaemonLink::~DaemonLink() {
  asio::post(thread_.executor(), [this] { say_goodbye(); });
  thread_.join();
}

void DaemonLink::say_goodbye() {
  is_stopping_ = true;
  state_->refused(Error(Errc::cancelled, "the Checkpointer was closed"));
  if (!is_attached_ || has_left_) return thread_.stop();
  // Unmaps first, since goodbye says that nothing is mapped.
  mapped_.clear();
  incoming_.clear();
  state_->forget_slots();
  enqueue(control::Goodbye{});
  // send_all() stops the thread after sending it. The alarm is for a daemon that does not read.
  goodbye_alarm_ = clock_->call_at(clock_->after(goodbye_time), [this] { thread_.stop(); });
}

void DaemonLink::post(control::Call call) {
  asio::post(thread_.executor(), [this, it = std::move(call)]() mutable {
    if (!is_stopping_) carry_out(std::move(it));
  });
}

void DaemonLink::let_go(MappedSlot slot) {
  asio::post(thread_.executor(), [this, held = std::move(slot)]() mutable {
    held = {};
    if (is_fenced_) make_way();
  });
}

// The trainer that took our place waits until we cannot write into the Slots any more. We may live
// on for long, so we send goodbye as soon as no capture is under way.
void DaemonLink::make_way() {
  mapped_.clear();
  incoming_.clear();
  if (has_left_ || !state_->forget_idle_slots()) return;
  has_left_ = true;
  enqueue(control::Goodbye{});
}

void DaemonLink::keep_mapped_by(std::shared_ptr<device::MemoryPins> pins) {
  asio::post(thread_.executor(), [this, it = std::move(pins)] { pins_ = it; });
}

void DaemonLink::carry_out(control::Call call) {
  if (auto* skipped = std::get_if<control::Skipped>(&call)) skipped->step = state_->next_skip();
  control::Message message = control::to_message(std::move(call));
  remembered_.said(message);
  if (is_attached_) enqueue(std::move(message));
}

void DaemonLink::enqueue(control::Message message) {
  if (!outgoing_.push(std::move(message))) {
    hang_up(fmt::format("the daemon takes no messages, {} wait", outgoing_.size()));
    return;
  }
  outgoing_changed_.notify_all();
  silence_.said();
}

// The trainer goes on without captures meanwhile, and must be warned.
void DaemonLink::report_silence(bool is_silent) {
  if (!is_silent) return state_->heard_again();
  const auto lasted = clock_->now() - silence_.silent_since();
  state_->silent({std::chrono::steady_clock::now() - lasted, connection_.peer().pid, daemon_log_});
}

void DaemonLink::hang_up(std::string why) {
  is_attached_ = false;  // Nothing more is sent; serve() sees the end and cleans up.
  hung_up_ = std::move(why);
  connection_.close();
}

DetachedTask DaemonLink::run() {
  ReconnectPause pause;
  LogLimit complaint(60.0);
  while (!is_stopping_) {
    auto attached = co_await attach_once();
    if (is_stopping_) co_return;
    if (attached) {
      const Time attached_at = clock_->now();
      auto ended = co_await serve();
      if (is_stopping_) co_return;
      pause.connection_ended(clock_->now() - attached_at);
      CKPT_ASSERT(!ended);
      lose(ended.error());
    } else {
      connection_.close();
      const Error& error = attached.error();
      const bool is_late = !was_attached_ && clock_->now() >= open_deadline_;
      if (!may_pass(error, was_attached_) || is_late) {
        if (was_attached_) log_error("no more checkpoints: {}", error.message());
        state_->refused(std::move(attached).error());
        co_return;
      }
      if (complaint.may_speak()) log_warning("attach failed, trying again: {}", error.message());
      state_->lost(error.text());
    }
    const Time again = clock_->after(pause.next(was_attached_));
    auto slept = co_await sleep_until(*clock_, again);
    if (!slept) co_return;
  }
}

void DaemonLink::lose(const Error& error) {
  is_attached_ = false;
  ++connection_number_;
  silence_.forget();
  connection_.close();
  outgoing_.clear();
  outgoing_changed_.notify_all();
  incoming_.clear();
  mapped_.clear();
  if (const std::string why = std::exchange(hung_up_, {}); !why.empty()) {
    if (hanging_up_.may_speak())
      log_warning("job={} rank={} connects again: {}", attach_.job, attach_.rank, why);
    return state_->lost(why);
  }
  const auto counters = state_->counters();
  const auto& captured = counters.captured;
  const auto& durable = counters.durable;
  // A step from before this trainer may be stored, too: this rank did not learn of it.
  log_warning(
      "job={} rank={} lost the daemon: {}. {}; {}. Training goes on, the daemon is started again",
      attach_.job, attach_.rank, error.text(),
      captured ? fmt::format("Its memory held step {}", number(*captured)) : "It held no step",
      durable ? fmt::format("storage has step {}", number(*durable))
              : "no step has been stored since this trainer started");
  state_->lost("the daemon is gone: " + error.text());
}

Task<control::Message> DaemonLink::receive(Time deadline) {
  CKPT_CO_TRY(auto message, co_await connection_.receive(deadline));
  co_return control::decode(message);
}

Task<void> DaemonLink::attach_once() {
  // Step 1.
  const Time deadline = was_attached_ ? clock_->after(reconnect_time) : open_deadline_;
  CKPT_CO_TRY(connection_, co_await start_.connect(deadline));
  state_->connected(connection_.peer().pid);
  // Step 2.
  const Time hello_deadline = clock_->after(hello_time);
  CKPT_CO_TRY(auto hello_message, control::encode(control::our_hello()));
  CKPT_CO_CHECK(co_await connection_.send(std::move(hello_message), hello_deadline));
  CKPT_CO_TRY(const auto first, co_await receive(hello_deadline));
  const auto* hello = std::get_if<control::Hello>(&first);
  if (hello == nullptr)
    co_return fail(Errc::corruption, "the daemon's first message was not hello");
  CKPT_CO_CHECK(control::check_hello(*hello, "the daemon"));
  // Step 3.
  CKPT_POINT("attach.before");
  const Time attach_deadline = clock_->after(attach_time);
  CKPT_CO_TRY(auto attach_message, control::encode(attach_));
  CKPT_CO_CHECK(co_await connection_.send(std::move(attach_message), attach_deadline));
  CKPT_CO_TRY(const auto second, co_await receive(attach_deadline));
  const auto* answer = std::get_if<control::AttachAnswer>(&second);
  if (answer == nullptr) co_return fail(Errc::corruption, "the daemon did not answer attach");
  if (!answer->result) co_return fail(Error(answer->result.error()));
  CKPT_POINT("attach.after");
  if (was_attached_) log_info("job={} rank={} attached again", attach_.job, attach_.rank);
  is_attached_ = was_attached_ = true;
  state_->attached(answer->run);
  // Step 4.
  for (control::Message& message : remembered_.all()) enqueue(std::move(message));
  run_detached(thread_.executor(), send_all(connection_number_));
  co_return Status();
}

DetachedTask DaemonLink::send_all(std::uint64_t connection_number) {
  while (connection_number == connection_number_) {
    if (outgoing_.is_empty()) {
      auto woken = co_await outgoing_changed_.wait_until(no_deadline);
      if (!woken) co_return;
      continue;
    }
    const control::Message message = outgoing_.pop();
    auto encoded = control::encode(message);
    if (!encoded) {  // Only a layout can be too large.
      state_->slots_failed(std::move(encoded).error());
      continue;
    }
    const Time deadline = clock_->after(send_time);
    auto sent = co_await connection_.send(std::move(*encoded), deadline);
    if (std::holds_alternative<control::Goodbye>(message) && !has_left_) thread_.stop();
    if (connection_number != connection_number_) co_return;
    if (!sent && sent.error().code() == Errc::unavailable && clock_->now() >= deadline)
      hang_up("the daemon read nothing for ten minutes");
    if (!sent) connection_.close();  // serve() sees the end and cleans up.
    if (!sent) co_return;
    if (std::holds_alternative<control::Filled>(message)) CKPT_POINT("notify.sent");
  }
}

// Step 5.
Task<void> DaemonLink::serve() {
  while (true) {
    CKPT_CO_TRY(auto raw, co_await connection_.receive(no_deadline));
    silence_.heard();
    CKPT_CO_TRY(auto message, control::decode(raw));
    if (is_stopping_) continue;
    CKPT_CO_CHECK(take(std::move(message), std::move(raw.descriptors)));
  }
}

Status DaemonLink::take(control::Message message, std::vector<os::Fd> descriptors) {
  if (const auto* segments = std::get_if<control::SlotSegments>(&message))
    return take_segments(*segments, std::move(descriptors));
  if (const auto* ready = std::get_if<control::SlotsReady>(&message)) return take(*ready);
  const auto name = control::name_of(message);
  auto event = control::to_event(std::move(message));
  if (!event) return fail(Errc::corruption, fmt::format("the daemon sent {} to a trainer", name));
  if (const auto* offer = std::get_if<control::Offer>(&*event)) CKPT_CHECK(map_pages(offer->slot));
  std::optional<std::uint32_t> granted;
  if (const auto* grant = std::get_if<control::Granted>(&*event)) granted = grant->slot;
  // A trainer that has restored waits for this grant, and computes a step before it captures.
  if (granted && !has_restored_) CKPT_CHECK(map_pages(*granted));
  note(*event);
  state_->notify(std::move(*event));
  if (granted) CKPT_CHECK(map_pages(*granted));
  if (is_fenced_) make_way();
  return {};
}

// Updates what the next daemon must receive.
void DaemonLink::note(const control::Event& event) {
  if (std::holds_alternative<control::Closed>(event)) remembered_.closed();
  if (std::holds_alternative<control::Fenced>(event))
    is_stopping_ = is_fenced_ = true;  // For good: another process has our place.
  const auto* begun = std::get_if<control::Begun>(&event);
  if (begun == nullptr) return;
  has_restored_ = begun->restored.has_value();
  remembered_.begun(*begun, attach_.continuation ? attach_.continuation->timeline : 0);
  if (begun->result) attach_.continuation = {begun->start_id, begun->timeline};
}

Status DaemonLink::take_segments(const control::SlotSegments& segments, std::vector<os::Fd> fds) {
  CKPT_ASSERT(fds.size() == segments.bytes.size());
  IncomingSlot& slot = incoming_[segments.slot];
  if (segments.first == 0) slot = {segments.generation, segments.count_of_all, {}};
  if (slot.generation != segments.generation || slot.segments.size() != segments.first)
    return fail(Errc::corruption, "the daemon's segments come in the wrong order");
  for (std::size_t index = 0; index < fds.size(); ++index) {
    CKPT_TRY(auto segment, os::adopt_segment(std::move(fds[index]), segments.bytes[index]));
    slot.segments.push_back(std::move(segment));
  }
  if (slot.segments.size() < slot.count_of_all) return {};

  os::MapOptions options;
  options.is_inherited = false;
  CKPT_TRY(auto mapped, os::MappedSegments::map(std::move(slot.segments), options));
  incoming_.erase(segments.slot);
  const auto owner = std::make_shared<os::MappedSegments>(std::move(mapped));
  unmapped_[segments.slot] = owner;
  const bool is_pinned_at_once = pins_ && pins_->has_pinner();
  if (is_pinned_at_once) CKPT_CHECK(map_pages(segments.slot));
  if (owner->bytes().size() != segments.capacity)
    return fail(Errc::corruption, "a Slot's segments are not as large as the Slot");
  if (mapped_.size() <= segments.slot) mapped_.resize(segments.slot + std::size_t{1});
  mapped_[segments.slot] = {segments.generation, owner->bytes(),
                            pins_ ? pins_->hold(owner->bytes(), owner) : owner};
  CKPT_POINT("slot.mapped");
  return {};
}

// The pages exist. This fills our page table before a restore or a capture needs them: of a Slot
// that is offered or granted, since a restart waits for one Slot and has several. It takes 35 ms
// and more for a GiB.
Status DaemonLink::map_pages(std::uint32_t slot) {
  const auto found = unmapped_.find(slot);
  if (found == unmapped_.end()) return {};
  const std::shared_ptr<os::MappedSegments> mapped = found->second.lock();
  unmapped_.erase(found);
  return mapped ? mapped->map_pages(prefault_threads_) : Status();
}

Status DaemonLink::take(control::SlotsReady ready) {
  if (mapped_.size() < ready.count || ready.count < ready.for_captures)
    return fail(Errc::corruption, "the daemon has more Slots than it has sent");
  mapped_.resize(ready.count);
  for (std::size_t index = 0; index < mapped_.size(); ++index) {
    MappedSlot& slot = mapped_[index];
    if (slot.owner == nullptr) return fail(Errc::corruption, "a Slot came without its segments");
    slot.is_for_restore = index >= ready.for_captures;
  }
  state_->slots_ready(mapped_);
  return {};
}

Result<std::unique_ptr<SessionLink>> open_daemon_link(const Options& options, Deadline deadline) {
  CKPT_TRY(auto directory, os::RuntimeDirectory::open(options.runtime_dir));
  CKPT_TRY(auto attach, make_attach(options));
  auto state = make_link_state(options);
  const std::string ready_file = directory.ready();
  auto side = std::make_unique<DaemonLink>(options, std::move(directory), std::move(attach), state,
                                           deadline);
  side->start();
  auto link = std::make_unique<SessionLink>(state, std::move(side));
  CKPT_CHECK(state->wait_attached(deadline, options.dir));
  // Written before the daemon answers anybody.
  if (const auto ready = os::read_file(ready_file, ready_bytes_max)) {
    const std::string other = other_budget(options, *ready);
    if (!other.empty()) log_warning("{}: {}", name_for_errors(options), other);
  }
  return std::unique_ptr<SessionLink>(std::move(link));
}

}  // namespace ckpt::client
