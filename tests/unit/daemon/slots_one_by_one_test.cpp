// Goal:   while one Slot of three is there, a trainer restores in it and captures nothing; with the
//         last one captures get all three.
// Method: a real engine behind a real control socket, whose memory comes Slot by Slot, when the
//         test says so. One trainer speaks the protocol by hand, another one is the real link.
#include <boost/asio/executor_work_guard.hpp>
#include <catch2/catch.hpp>
#include <cstring>
#include <thread>

#include "arena/shared_slot_memory.hpp"
#include "base/spawn.hpp"
#include "client/session_link.hpp"
#include "daemon/control_server.hpp"
#include "os/process.hpp"
#include "os/ring_file_system.hpp"
#include "support/patience.hpp"
#include "support/run_task.hpp"
#include "support/temporary_directory.hpp"
#include "wire/control_codec.hpp"
#include "wire/tcp_network.hpp"

namespace ckpt::daemon {
namespace {

namespace control = wire::control;
using test::soon;

constexpr std::uint32_t all_slots = 3;

format::Layout layout_of_rank() {
  const format::TensorSpec spec{"weight", DType::u8, {64 << 10}, "", ""};
  return format::make_layout(std::span(&spec, 1), 0, 0, 1).value();
}

// GatedMemory: real memory that trainers can map; each Slot waits until the test lets it be made.
class GatedMemory final : public arena::MemorySource {
 public:
  explicit GatedMemory(Clock& clock) : clock_(clock), opened_(clock) {}
  void let_make(std::uint32_t count) {
    may_make_ += count;
    opened_.notify_all();
  }
  Task<std::unique_ptr<arena::SlotMemory>> allocate(std::uint64_t bytes) override {
    while (may_make_ == 0) {
      const Time deadline = clock_.after(std::chrono::minutes(1));
      CKPT_CO_TRY(const bool was_opened, co_await opened_.wait_until(deadline));
      if (!was_opened) co_return fail(Errc::exhausted, "the test opened no gate");
    }
    --may_make_;
    auto made = co_await memory_.allocate(bytes);
    co_return made;
  }

 private:
  Clock& clock_;
  Signal opened_;
  std::uint32_t may_make_ = 0;
  arena::SharedMemorySource memory_;
};

// The engine and its socket, on a thread of their own, as in ckptd.
class Server final : private DaemonControl {
 public:
  explicit Server(const std::string& place)
      : directory_(os::RuntimeDirectory::open(place).value()) {
    node::EngineOptions options;
    options.name = "A";
    options.boot = 7;
    options.memory_budget = 64 << 20;
    engine_.emplace(context_.get_executor(), node::Seams{*clock_, memory_, *files_, network_},
                    options);
    server_.emplace(context_.get_executor(), *clock_, *engine_, static_cast<DaemonControl&>(*this));
    REQUIRE(server_->start(directory_.socket()));
    thread_ = std::thread([this] { context_.run(); });
  }
  ~Server() override {
    asio::post(context_, [this] { run_detached(context_.get_executor(), end()); });
    thread_.join();
    server_.reset();
    engine_.reset();
    clock_->close();
    context_.restart();
    context_.run_for(std::chrono::seconds(2));
  }
  void let_make(std::uint32_t count) {
    asio::post(context_, [this, count] { memory_.let_make(count); });
  }
  const std::string& place() const { return directory_.path(); }
  std::string socket() const { return directory_.socket(); }

 private:
  std::string status_json() const override { return engine_->status_json(); }
  Task<std::string> stop(Duration, bool) override {
    co_return fail(Errc::unsupported, "the test ends it");
  }
  DetachedTask end() {
    const Duration most = std::chrono::seconds(10);
    (void)co_await engine_->stop(most);
    const Time last = clock_->after(most);
    (void)co_await server_->stop(last);
    context_.stop();
  }

  os::RuntimeDirectory directory_;
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> works_{context_.get_executor()};
  std::unique_ptr<Clock> clock_ = make_system_clock(context_.get_executor());
  GatedMemory memory_{*clock_};
  std::unique_ptr<os::FileSystem> files_ = os::make_file_system();
  wire::TcpNetwork network_{context_.get_executor(), *clock_};
  std::optional<node::Engine> engine_;
  std::optional<ControlServer> server_;
  std::thread thread_;
};

// A trainer that has attached, and reads messages by hand.
struct AttachedTrainer {
  explicit AttachedTrainer(const Server& server)
      : connection(test::run_task(context, os::connect_local(*clock, server.socket(), in_time()))
                       .value()) {
    send(control::our_hello());
    REQUIRE(std::holds_alternative<control::Hello>(receive()));
    control::Attach attach;
    attach.start_time = os::identify_process(::getpid()).value().start_ticks;
    attach.job = "job";
    attach.node = "A";
    attach.nodes = {{"A", "A", ""}};
    attach.own_slots = all_slots;
    send(attach);
    REQUIRE(std::get<control::AttachAnswer>(receive()).result);
  }
  Time in_time() const { return clock->after(std::chrono::seconds(30)); }
  void send(const control::Message& message) {
    auto encoded = control::encode(message).value();
    REQUIRE(test::run_task(context, connection.send(std::move(encoded), in_time())));
  }
  control::Message receive() {
    return control::decode(test::run_task(context, connection.receive(in_time())).value()).value();
  }
  // The Slots whose memory came before it, and the message itself.
  std::pair<std::vector<std::uint32_t>, control::SlotsReady> receive_slots() {
    std::vector<std::uint32_t> slots;
    for (;;) {
      const control::Message message = receive();
      if (const auto* ready = std::get_if<control::SlotsReady>(&message)) return {slots, *ready};
      if (const auto* it = std::get_if<control::SlotSegments>(&message)) slots.push_back(it->slot);
    }
  }

  asio::io_context context;
  std::unique_ptr<Clock> clock = make_system_clock(context.get_executor());
  os::LocalConnection connection;
};

struct Place {
  Place() {
    options.job = "job";
    options.node = "A";
    options.dir = directory.file("checkpoints");
    options.save_storage_interval.steps = 1;
    options.replicas = 1;
    options.memory_budget = 64 << 20;
    options.runtime_dir = directory.file("run");
    options.daemon_path = "/nowhere";  // No other daemon is started.
  }
  std::unique_ptr<client::SessionLink> open_link() const {
    auto link = client::open_daemon_link(options, soon());
    if (!link) FAIL(link.error().message());
    return std::move(*link);
  }
  test::TemporaryDirectory directory;
  Options options;
};

// Grants come by themselves.
client::TakenSlot take(client::SessionLink& link, Step step) {
  const client::Deadline deadline = soon();
  while (std::chrono::steady_clock::now() < deadline) {
    if (auto taken = link.take_slot(step)) return *taken;
    std::this_thread::yield();
  }
  FAIL("no Slot was granted");
  std::abort();
}

void capture(client::SessionLink& link, Step step) {
  const client::TakenSlot taken = take(link, step);
  std::memset(taken.bytes.data(), static_cast<int>(number(step)), taken.bytes.size());
  control::Filled filled;
  filled.slot = taken.slot;
  filled.step = step;
  filled.layout_version = layout_of_rank().version;
  filled.chunk_bytes = default_chunk_bytes;
  link.filled(taken, std::move(filled));
}

}  // namespace

TEST_CASE("slots one by one: a trainer hears of each, and of captures with the last",
          "[unit][daemon]") {
  const test::TemporaryDirectory directory;
  Server server(directory.file("run"));
  AttachedTrainer caller(server);
  caller.send(control::SetLayout{layout_of_rank()});
  for (std::uint32_t count = 1; count <= all_slots; ++count) {
    server.let_make(1);
    const auto [slots, ready] = caller.receive_slots();
    CHECK(slots == std::vector<std::uint32_t>{count - 1});
    CHECK(ready.count == count);
    CHECK(ready.for_captures == (count < all_slots ? 0 : all_slots));
  }
}

TEST_CASE("slots one by one: the real link restores in the first, and captures with the last",
          "[unit][daemon]") {
  const Place place;
  {
    Server server(place.options.runtime_dir);
    server.let_make(all_slots);
    const auto link = place.open_link();
    REQUIRE(link->set_layout(layout_of_rank(), soon()));
    REQUIRE(link->start_fresh(soon(), client::Fresh::asked));
    capture(*link, Step{1});
    REQUIRE(link->wait(Step{1}, Level::durable, soon()));
  }
  Server server(place.options.runtime_dir);
  server.let_make(1);
  const auto link = place.open_link();
  const Status coming = link->set_layout(layout_of_rank(), std::chrono::steady_clock::now());
  REQUIRE_FALSE(coming);
  CHECK(coming.error().code() == Errc::unavailable);
  REQUIRE(link->ask_restore({}, soon()));
  bool is_right = false;
  const auto restored = link->restore(
      [&](const control::Offer&, std::span<const std::byte> bytes) {
        is_right = bytes.front() == std::byte{1};
        return Status();
      },
      soon());
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(restored->step == Step{1});
  CHECK(is_right);
  CHECK_FALSE(link->is_ready());
  CHECK_FALSE(link->take_slot(Step{2}));

  server.let_make(all_slots - 1);
  REQUIRE(link->set_layout(layout_of_rank(), soon()));
  CHECK(link->is_ready());
  capture(*link, Step{2});
  CHECK(link->wait(Step{2}, Level::durable, soon()));
}

}  // namespace ckpt::daemon
