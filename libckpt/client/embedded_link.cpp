#include "client/embedded_link.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.hpp"
#include "base/random.hpp"
#include "base/spawn.hpp"
#include "bucket/any_file_system.hpp"
#include "client/attach_message.hpp"
#include "os/hash_threads.hpp"
#include "os/mapped_segments.hpp"
#include "os/memory_available.hpp"
#include "os/ring_file_system.hpp"

namespace ckpt::client {

namespace {

constexpr Duration stop_time = std::chrono::seconds(5);
constexpr std::chrono::milliseconds drain_time(2'000);

std::uint64_t available_bytes() {
  const auto available = os::memory_available();
  return available ? available->bytes : UINT64_MAX;
}

node::EngineOptions engine_options(const Options& options) {
  node::EngineOptions engine;
  engine.name = fmt::format("embedded in pid {}", ::getpid());
  engine.boot = random_from_system();
  engine.memory_budget = options.memory_budget != 0 ? options.memory_budget : available_bytes() / 2;
  return engine;
}

arena::SharedMemoryOptions memory_options() {
  arena::SharedMemoryOptions options;
  options.available_bytes = available_bytes;
  return options;
}

}  // namespace

struct EmbeddedLink::Machine {
  Machine(const asio::any_io_executor& executor, const Options& options)
      : clock(make_system_clock(executor)),
        memory(memory_options()),
        files(bucket::with_buckets(os::make_file_system(), *clock, os::DiskPriority::background)),
        network(executor, *clock),
        engine(std::make_unique<node::Engine>(
            executor, node::Seams{*clock, memory, *files, network, &hash_threads},
            engine_options(options))) {}

  std::unique_ptr<Clock> clock;
  arena::SharedMemorySource memory;
  std::unique_ptr<os::FileSystem> files;
  os::HashThreads hash_threads;
  wire::TcpNetwork network;
  std::unique_ptr<node::Engine> engine;
};

EmbeddedLink::EmbeddedLink(const Options& options, control::Attach attach,
                           std::shared_ptr<LinkState> state)
    : state_(std::move(state)),
      attach_(std::move(attach)),
      prefault_threads_(static_cast<int>(std::clamp<std::uint32_t>(options.copy_threads, 1, 4))),
      machine_(std::make_unique<Machine>(thread_.executor(), options)) {}

void EmbeddedLink::start() {
  run_detached(thread_.executor(), attach());
  thread_.start();
}

EmbeddedLink::~EmbeddedLink() {
  asio::post(thread_.executor(), [this] {
    state_->refused(Error(Errc::cancelled, "the Checkpointer was closed"));
    run_detached(thread_.executor(), stop_engine());
  });
  thread_.join();
  state_->forget_slots();
  machine_->engine.reset();
  // Every wait ends at once, and with it the remaining coroutines. A flush that waits for the disk
  // still reads the clock.
  machine_->clock->close();
  if (has_stopped_ && thread_.drain(drain_time)) return;
  log_warning(
      "the embedded engine did not end in time (does a file system hang?): its memory stays "
      "until the process ends");
  (void)machine_.release();
}

DetachedTask EmbeddedLink::attach() {
  // It may block: this engine serves nobody else yet.
  auto secret = node::read_secret(attach_.secret_file);
  if (!secret) {
    state_->refused(std::move(secret).error());
    co_return;
  }
  node::AttachRequest request{attach_, std::move(*secret), ::getpid()};
  auto attached = co_await machine_->engine->attach(std::move(request), *this);
  if (!attached) {
    state_->refused(std::move(attached).error());
    co_return;
  }
  session_ = attached->session;
  state_->attached(attached->run);
}

DetachedTask EmbeddedLink::stop_engine() {
  if (session_) machine_->engine->detach(*session_);
  session_.reset();
  mapped_.clear();
  auto stopped = co_await machine_->engine->stop(stop_time);
  if (!stopped) log_warning("stop the embedded engine: {}", stopped.error().message());
  has_stopped_ = stopped.has_value();
  thread_.stop();
}

void EmbeddedLink::post(control::Call call) {
  asio::post(thread_.executor(), [this, it = std::move(call)]() mutable {
    if (auto* skipped = std::get_if<control::Skipped>(&it)) skipped->step = state_->next_skip();
    if (!session_) return;
    const auto name = control::name_of(it);
    const Status status = machine_->engine->call(*session_, std::move(it));
    if (!status) log_warning("{}: {}", name, status.error().message());
  });
}

void EmbeddedLink::keep_mapped_by(std::shared_ptr<device::MemoryPins> pins) {
  asio::post(thread_.executor(), [this, it = std::move(pins)] { pins_ = it; });
}

void EmbeddedLink::let_go(MappedSlot slot) {
  asio::post(thread_.executor(), [held = std::move(slot)] {});
}

Result<MappedSlot> EmbeddedLink::map_slot(const node::ReadySlot& slot) const {
  std::vector<os::Segment> segments;
  for (const arena::SegmentView& view : slot.memory->segments()) {
    CKPT_TRY(auto fd, os::duplicate(view.fd));
    segments.push_back({std::move(fd), view.bytes});
  }
  os::MapOptions options;
  options.is_inherited = false;
  CKPT_TRY(auto mapped, os::MappedSegments::map(std::move(segments), options));
  CKPT_CHECK(mapped.map_pages(prefault_threads_));
  const auto owner = std::make_shared<os::MappedSegments>(std::move(mapped));
  return MappedSlot{slot.generation, owner->bytes(),
                    pins_ ? pins_->hold(owner->bytes(), owner) : owner, slot.is_for_restore};
}

void EmbeddedLink::slots_ready(std::vector<node::ReadySlot> slots) {
  mapped_.resize(slots.size());
  for (std::size_t index = 0; index < slots.size(); ++index) {
    const bool is_mapped =
        mapped_[index].generation == slots[index].generation && mapped_[index].owner;
    if (!is_mapped) {
      auto mapped = map_slot(slots[index]);
      if (!mapped) return state_->slots_failed(std::move(mapped).error());
      mapped_[index] = std::move(*mapped);
    }
    mapped_[index].is_for_restore = slots[index].is_for_restore;
  }
  state_->slots_ready(mapped_);
}

Result<std::unique_ptr<SessionLink>> open_embedded_link(const Options& options, Deadline deadline) {
  CKPT_TRY(auto attach, make_attach(options));
  auto state = make_link_state(options);
  auto side = std::make_unique<EmbeddedLink>(options, std::move(attach), state);
  side->start();
  auto link = std::make_unique<SessionLink>(state, std::move(side));
  CKPT_CHECK(state->wait_attached(deadline, options.dir));
  return std::unique_ptr<SessionLink>(std::move(link));
}

}  // namespace ckpt::client
