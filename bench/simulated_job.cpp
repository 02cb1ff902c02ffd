#include "bench/simulated_job.hpp"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "base/spawn.hpp"
#include "base/units.hpp"
#include "node/engine.hpp"
#include "support/fake_clock.hpp"
#include "support/heap_memory.hpp"

namespace bench {

namespace {

namespace asio = ckpt::asio;
namespace control = ckpt::wire::control;
namespace node = ckpt::node;
using ckpt::Duration;

constexpr std::uint64_t tensor_bytes = 1024;
// All nodes advance by steps of this length. Events within one step run in any order.
constexpr Duration tick = std::chrono::milliseconds(5);
constexpr Duration beat = std::chrono::milliseconds(500);  // EngineOptions::heartbeat_interval.
constexpr Duration begin_time_max = std::chrono::minutes(5);
constexpr ckpt::Step first_step{1};

double thread_microseconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

}  // namespace

// A rank that starts fresh, captures one step, and then does nothing.
struct SimulatedJob::Trainer final : node::SessionEvents {
  void slots_ready(std::vector<node::ReadySlot> all) override { slots = std::move(all); }
  void tell(control::Event event) override {
    if (const auto* failed = std::get_if<control::SlotsFailed>(&event)) {
      std::fprintf(stderr, "scale: no Slots: %s\n", failed->result.error().message().c_str());
      std::exit(2);
    }
    if (const auto* granted = std::get_if<control::Granted>(&event)) capture(granted->slot);
    if (const auto* reached = std::get_if<control::LevelReached>(&event))
      is_committed = is_committed || reached->level == ckpt::Level::committed;
  }
  void capture(std::uint32_t slot) {
    if (has_captured) return;
    has_captured = true;
    asio::post(*context, [this, slot] {
      const control::Begin begin{slot, slots.at(slot).generation, first_step};
      control::Filled filled;
      filled.slot = slot;
      filled.generation = begin.generation;
      filled.step = first_step;
      has_captured = engine->call(session, begin).has_value() &&
                     engine->call(session, std::move(filled)).has_value();
    });
  }

  asio::io_context* context = nullptr;
  node::Engine* engine = nullptr;
  node::SessionId session{};
  std::vector<node::ReadySlot> slots;
  bool has_captured = false;
  bool is_committed = false;
};

struct SimulatedJob::Machine {
  Machine(SimulatedJob& job, std::string machine_name, std::uint64_t boot)
      : name(std::move(machine_name)),
        clock(*context),
        files(job.disk_, &clock, static_cast<std::uint32_t>(boot)),
        front(job.network_.add_node(name, clock)) {
    node::EngineOptions options;
    options.name = name;
    options.boot = boot;
    options.memory_budget = 64 * ckpt::MiB;
    engine = std::make_unique<node::Engine>(context->get_executor(),
                                            node::Seams{clock, memory, files, *front}, options);
  }
  ~Machine() {
    context.reset();  // Suspended coroutines go first, as at a kill.
  }

  // Runs everything due until `duration` has passed, and measures its real time.
  void pass(Duration duration) {
    poll();
    const ckpt::Time end = clock.now() + duration;
    const bool is_due = clock.next_deadline().value_or(ckpt::no_deadline) <= end;
    const double before = is_due ? thread_microseconds() : 0;
    clock.advance(duration);
    if (is_due) microseconds += thread_microseconds() - before;
  }
  bool poll() {
    const double before = thread_microseconds();
    context->restart();
    const bool has_run = context->poll() > 0;
    if (has_run) microseconds += thread_microseconds() - before;
    return has_run;
  }

  std::string name;
  std::unique_ptr<asio::io_context> context = std::make_unique<asio::io_context>();
  ckpt::test::FakeClock clock;
  ckpt::test::HeapSource memory;
  ckpt::test::MemoryFileSystem files;
  std::unique_ptr<ckpt::wire::Network> front;
  std::vector<std::unique_ptr<Trainer>> trainers;
  std::unique_ptr<node::Engine> engine;
  double microseconds = 0;
};

SimulatedJob::SimulatedJob(std::size_t nodes, std::uint32_t ranks_per_node)
    : disk_(1), network_(1) {
  for (std::size_t index = 0; index < nodes; ++index) {
    nodes_.push_back(std::make_unique<Machine>(*this, fmt::format("node-{:04}", index), index + 1));
  }
  for (std::size_t index = 0; index < nodes; ++index)
    attach_ranks(*nodes_[index], index, ranks_per_node);
  Duration passed{};
  while (!is_committed() && passed < begin_time_max) {
    pass(beat);
    passed += beat;
  }
  if (!is_committed()) {
    std::fprintf(stderr, "scale: %zu nodes did not commit their step\n", nodes);
    std::exit(2);
  }
  pass(20 * beat);  // The changes of the commit have settled.
}

SimulatedJob::~SimulatedJob() {
  for (const auto& machine : nodes_) network_.kill(machine->name);
}

void SimulatedJob::attach_ranks(Machine& machine, std::size_t index, std::uint32_t ranks_per_node) {
  node::AttachRequest request;
  request.job = "scale";
  request.world_size = static_cast<std::uint32_t>(nodes_.size()) * ranks_per_node;
  for (const auto& member : nodes_)
    request.nodes.push_back({member->name, "", member->name + ":1"});
  request.node = machine.name;
  request.secret = "0123456789abcdef0123456789abcdef";
  request.save_mem_interval.steps = 1;
  const ckpt::format::TensorSpec spec{"weight", ckpt::DType::u8, {tensor_bytes}, "", ""};
  for (std::uint32_t rank = 0; rank < ranks_per_node; ++rank) {
    request.rank = static_cast<std::uint32_t>(index) * ranks_per_node + rank;
    auto trainer = std::make_unique<Trainer>();
    trainer->context = machine.context.get();
    trainer->engine = machine.engine.get();
    std::optional<ckpt::Result<node::Attached>> attached;
    ckpt::spawn_into(machine.context->get_executor(), machine.engine->attach(request, *trainer),
                     attached);
    while (!attached) machine.pass(tick);
    auto layout = ckpt::format::make_layout(std::span(&spec, 1), request.rank, 0, 1);
    const bool is_ready = *attached && layout;
    if (is_ready) trainer->session = (*attached)->session;
    if (!is_ready || !machine.engine->call(trainer->session, control::SetLayout{*layout}) ||
        !machine.engine->call(trainer->session, control::StartFresh{1})) {
      std::fprintf(stderr, "scale: rank %u cannot attach\n", request.rank);
      std::exit(2);
    }
    machine.trainers.push_back(std::move(trainer));
  }
}

bool SimulatedJob::is_committed() const {
  return std::all_of(nodes_.begin(), nodes_.end(), [](const auto& machine) {
    return std::all_of(machine->trainers.begin(), machine->trainers.end(),
                       [](const auto& trainer) { return trainer->is_committed; });
  });
}

void SimulatedJob::pass(Duration duration) {
  for (Duration passed{}; passed < duration; passed += tick) {
    for (const auto& machine : nodes_) machine->pass(tick);
    bool has_run = true;  // A node's read wakes another that waits to write.
    while (has_run) {
      has_run = false;
      for (const auto& machine : nodes_) has_run = machine->poll() || has_run;
    }
  }
}

std::vector<std::uint64_t> SimulatedJob::bytes_received() const {
  std::vector<std::uint64_t> received;
  for (const auto& to : nodes_) {
    received.push_back(0);
    for (const auto& from : nodes_)
      received.back() += network_.bytes_delivered(from->name, to->name);
  }
  return received;
}

void SimulatedJob::run(std::size_t beats) {
  const std::vector<std::uint64_t> before = bytes_received();
  for (const auto& machine : nodes_) machine->microseconds = 0;
  pass(static_cast<Duration::rep>(beats) * beat);
  const std::vector<std::uint64_t> after = bytes_received();
  mean_ = {};
  for (std::size_t index = 0; index < nodes_.size(); ++index) {
    const ControlCost cost{
        static_cast<double>(after[index] - before[index]) / static_cast<double>(beats),
        nodes_[index]->microseconds / static_cast<double>(beats)};
    mean_.bytes += cost.bytes / static_cast<double>(nodes_.size());
    mean_.microseconds += cost.microseconds / static_cast<double>(nodes_.size());
    if (index == 0) coordinator_ = cost;  // The lowest of the list.
  }
}

double SimulatedJob::status_milliseconds() {
  const double before = thread_microseconds();
  const std::string status = nodes_.front()->engine->status_json();
  return (thread_microseconds() - before) / 1e3 + (status.empty() ? 1 : 0);
}

}  // namespace bench
