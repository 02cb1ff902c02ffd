// Goal:   a trainer's captures live in a daemon that it started, survive the trainer, and come
//         back; the daemon's death costs the trainer nothing but time.
// Method: real processes: a Link starts the real ckptd in a directory of its own, captures, dies in
//         various ways, and the next Link restores and compares the bytes.
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/units.hpp"
#include "client/session_link.hpp"
#include "device/memory_pins.hpp"
#include "os/process.hpp"
#include "os/runtime_directory.hpp"
#include "support/patience.hpp"
#include "support/run_task.hpp"
#include "support/sanitized.hpp"
#include "support/temporary_directory.hpp"
#include "unit/client/daemon_place.hpp"
#include "wire/control_codec.hpp"

namespace ckpt::client {
namespace {

using test::soon;

format::Layout small_layout(std::int64_t elements, std::uint32_t version = 1,
                            std::uint32_t rank = 0) {
  std::vector<format::TensorSpec> tensors(1);
  tensors[0] = {"weight", DType::f32, {elements}, ""};
  return format::make_layout(tensors, rank, 0, version).value();
}

struct SlotMemory {  // Of this process, in KiB.
  std::uint64_t all = 0;
  std::uint64_t in_page_table = 0;
};
SlotMemory slot_memory() {
  SlotMemory memory;
  bool is_slot = false;
  std::ifstream maps("/proc/self/smaps");
  for (std::string line; std::getline(maps, line);) {
    std::uint64_t kib = 0;
    if (std::sscanf(line.c_str(), "Size: %lu kB", &kib) == 1 && is_slot) memory.all += kib;
    if (std::sscanf(line.c_str(), "Rss: %lu kB", &kib) == 1 && is_slot) memory.in_page_table += kib;
    if (line.find('-') < line.find(' ')) is_slot = line.find("/memfd:") != std::string::npos;
  }
  return memory;
}

std::unique_ptr<SessionLink> open(const DaemonPlace& place) {
  auto link = open_link(place.options, soon());
  if (!link) FAIL(link.error().message());
  return std::move(*link);
}

std::optional<TakenSlot> take(SessionLink& link, Step step) {
  const Deadline deadline = soon();
  // Grants come by themselves; nothing tells a trainer, which just goes on training.
  while (std::chrono::steady_clock::now() < deadline) {
    if (auto granted = link.take_slot(step)) return granted;
    std::this_thread::yield();
  }
  return std::nullopt;
}

void capture(SessionLink& link, const format::Layout& layout, Step step) {
  const auto granted = take(link, step);
  REQUIRE(granted.has_value());
  // Not the padding, which is of no file, and zeros.
  for (const auto& member : layout.members) {
    std::memset(granted->bytes.data() + member.extent.offset, static_cast<int>(number(step)),
                member.extent.bytes);
  }
  control::Filled filled;
  filled.slot = granted->slot;
  filled.step = step;
  filled.layout_version = layout.version;
  filled.chunk_bytes = default_chunk_bytes;
  link.filled(*granted, std::move(filled));
}

void start_and_capture(SessionLink& link, const format::Layout& layout, Step last) {
  REQUIRE(link.set_layout(layout, soon()));
  REQUIRE(link.start_fresh(soon(), Fresh::asked));
  for (std::uint64_t step = 1; step <= number(last); ++step) capture(link, layout, Step{step});
  const auto committed = link.wait(last, Level::committed, soon());
  if (!committed) FAIL(committed.error().message());
}

Step restored_step(SessionLink& link, const format::Layout& layout,
                   RestoreSource from = RestoreSource::own_memory) {
  REQUIRE(link.set_layout(layout, soon()));
  std::optional<int> value;
  const SessionLink::CopyOut copy_out = [&](const control::Offer&,
                                            std::span<const std::byte> bytes) {
    value = static_cast<int>(bytes.front());
    for (const auto& member : layout.members) {
      for (const std::byte byte : bytes.subspan(member.extent.offset, member.extent.bytes)) {
        if (static_cast<int>(byte) != *value) return Status(fail(Errc::corruption, "mixed bytes"));
      }
    }
    return Status();
  };
  REQUIRE(link.ask_restore({}, soon()));
  const auto restored = link.restore(copy_out, soon());
  if (!restored) FAIL(restored.error().message());
  CHECK(static_cast<int>(number(restored->step)) == value);
  CHECK(restored->source == from);
  return restored->step;
}

// A trainer in a process of its own; `work` ends with `true` where all was well.
struct TrainerProcess {
  explicit TrainerProcess(const std::function<bool()>& work) : pid(::fork()) {
    if (pid == 0) ::_exit(work() ? 0 : 1);
  }
  ~TrainerProcess() {
    if (pid > 0) ::kill(pid, SIGKILL);
    if (pid > 0) ::waitpid(pid, nullptr, 0);
  }
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid, -1), &status, 0);
    return status;
  }
  pid_t pid;
};

// A byte from one process to another.
struct Pipe {
  Pipe() { REQUIRE(::pipe(ends) == 0); }
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  bool say() const { return ::write(ends[1], "!", 1) == 1; }
  bool hear() const {
    char byte = 0;
    return ::read(ends[0], &byte, 1) == 1;
  }
  int ends[2] = {-1, -1};
};

// The daemon has answered so often: whatever it wanted to do at once, it has done.
void exchange_with_daemon(const DaemonPlace& place, int times) {
  namespace control = wire::control;
  asio::io_context context;
  const auto clock = make_system_clock(context.get_executor());
  const Time deadline = clock->after(std::chrono::seconds(30));
  for (int i = 0; i < times; ++i) {
    auto connection =
        test::run_task(
            context, os::connect_local(*clock, place.options.runtime_dir + "/ckptd.sock", deadline))
            .value();
    for (const control::Message& message :
         {control::Message(control::our_hello()), control::Message(control::AskStatus{})}) {
      REQUIRE(test::run_task(context, connection.send(control::encode(message).value(), deadline)));
      REQUIRE(test::run_task(context, connection.receive(deadline)));
    }
  }
}

// Ends the process's connections, and keeps it from making others.
bool lose_connections() {
  std::vector<int> sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.starts_with("socket:")) sockets.push_back(std::stoi(entry.path().filename()));
  }
  const ::rlimit none{0, 0};
  if (::setrlimit(RLIMIT_NOFILE, &none) != 0) return false;
  for (const int socket : sockets) (void)::shutdown(socket, SHUT_RDWR);
  return !sockets.empty();
}

// For trainers in forked processes, where Catch2 must not speak.
bool capture_in_child(SessionLink& link, const format::Layout& layout, Step last) {
  if (!link.set_layout(layout, soon()) || !link.start_fresh(soon(), Fresh::asked)) return false;
  for (std::uint64_t step = 1; step <= number(last); ++step) {
    const auto granted = take(link, Step{step});
    if (!granted) return false;
    std::memset(granted->bytes.data(), static_cast<int>(step), layout.slot_bytes);
    control::Filled filled;
    filled.slot = granted->slot;
    filled.step = Step{step};
    filled.chunk_bytes = default_chunk_bytes;
    link.filled(*granted, std::move(filled));
  }
  return link.wait(last, Level::committed, soon()).has_value();
}

}  // namespace

TEST_CASE("daemon link: captures survive the trainer and come back", "[unit][client]") {
  const DaemonPlace place;
  const auto layout = small_layout(2000);
  {
    const auto link = open(place);
    CHECK_FALSE(link->is_ready());
    start_and_capture(*link, layout, Step{3});
    CHECK(link->is_ready());
    CHECK(link->counters().committed == Step{3});
    CHECK(link->counters().daemon_restarts == 0);
  }
  const pid_t daemon = place.daemon();
  const auto link = open(place);
  CHECK(place.daemon() == daemon);
  CHECK(restored_step(*link, layout) == Step{3});
  capture(*link, layout, Step{4});
  CHECK(link->wait(Step{4}, Level::committed, soon()));
  REQUIRE(link->close(soon()));
}

TEST_CASE("daemon link: a restore maps the pages of the Slot that is offered, and of no other",
          "[unit][client]") {
  const DaemonPlace place;
  const auto layout = small_layout(1 << 20);
  start_and_capture(*open(place), layout, Step{1});
  REQUIRE(slot_memory().all == 0);
  const auto link = open(place);
  link->keep_mapped_by(std::make_shared<device::MemoryPins>());  // As each session does.
  REQUIRE(link->set_layout(layout, soon()));
  SlotMemory offered;
  std::uint64_t slot_kib = 0;
  const SessionLink::CopyOut look = [&](const control::Offer&, std::span<const std::byte> bytes) {
    offered = slot_memory();
    slot_kib = bytes.size() / KiB;
    return Status();
  };
  REQUIRE(link->ask_restore({}, soon()));
  REQUIRE(link->restore(look, soon()));
  CHECK(offered.all >= 2 * slot_kib);
  CHECK(offered.in_page_table >= slot_kib);
  CHECK(offered.in_page_table < 2 * slot_kib);
  // The restore does not wait for the pages of the Slot that is granted next.
  REQUIRE(take(*link, Step{2}));
  const Deadline deadline = soon();
  while (slot_memory().in_page_table < 2 * slot_kib && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  CHECK(slot_memory().in_page_table >= 2 * slot_kib);
}

TEST_CASE("daemon link: the first Slot of a new job comes with its pages", "[unit][client]") {
  const DaemonPlace place;
  const auto link = open(place);
  link->keep_mapped_by(std::make_shared<device::MemoryPins>());
  REQUIRE(link->set_layout(small_layout(1 << 20), soon()));
  REQUIRE(link->start_fresh(soon(), Fresh::asked));
  const auto first = take(*link, Step{1});
  REQUIRE(first.has_value());
  CHECK(slot_memory().in_page_table >= first->bytes.size() / KiB);
}

TEST_CASE("daemon link: with nothing to restore the answer is not_found", "[unit][client]") {
  const DaemonPlace place;
  const auto link = open(place);
  REQUIRE(link->set_layout(small_layout(10), soon()));
  REQUIRE(link->ask_restore({}, soon()));
  const auto restored = link->restore([](const auto&, auto) { return Status(); }, soon());
  REQUIRE_FALSE(restored);
  CHECK(restored.error().code() == Errc::not_found);
}

TEST_CASE("daemon link: a killed daemon is started again and training goes on", "[unit][client]") {
  const DaemonPlace place;
  const auto layout = small_layout(2000);
  const auto link = open(place);
  start_and_capture(*link, layout, Step{2});
  const std::uint64_t timeline = link->identity().timeline;
  const pid_t first = place.daemon();
  place.kill_daemon();

  capture(*link, layout, Step{3});  // Takes a Slot of the old daemon, or of the new one.
  for (std::uint64_t step = 4; link->counters().daemon_restarts == 0 || step < 7; ++step)
    capture(*link, layout, Step{step});
  capture(*link, layout, Step{100});
  CHECK(link->wait(Step{100}, Level::committed, soon()));
  CHECK(link->counters().daemon_restarts == 1);
  CHECK(link->identity().timeline == timeline);
  CHECK(place.daemon() != first);
}

TEST_CASE("daemon link: a trainer that skips faster than its daemon reads loses nothing",
          "[unit][client]") {
  const DaemonPlace place;
  const auto layout = small_layout(2000);
  const auto link = open(place);
  start_and_capture(*link, layout, Step{2});
  const auto granted = take(*link, Step{3});
  REQUIRE(granted.has_value());
  const auto daemon = os::open_process(place.daemon());
  REQUIRE(daemon);
  REQUIRE(os::kill_process(*daemon, SIGSTOP));
  // Far more than its socket takes, each with something else between.
  for (std::uint64_t step = 4; step < 4000; ++step) {
    link->skipped(Step{step});
    link->arrived(*granted, step);
    if (step % 1000 == 0) CHECK_FALSE(link->status(std::chrono::steady_clock::now()));
  }
  link->abandon(*granted);
  REQUIRE(os::kill_process(*daemon, SIGCONT));
  capture(*link, layout, Step{5000});
  CHECK(link->wait(Step{5000}, Level::committed, soon()));
  CHECK(link->counters().daemon_restarts == 0);
  CHECK(link->status(soon()));
}

TEST_CASE("daemon link: a trainer gets its job's status", "[unit][client]") {
  DaemonPlace place;
  place.options.embedded = GENERATE(false, true);
  const auto link = open(place);
  start_and_capture(*link, small_layout(1000), Step{3});
  const auto status = link->status(soon());
  if (!status) FAIL(status.error().message());
  const auto job = nlohmann::json::parse(*status);
  CHECK(job["job"] == "test");
  CHECK(job["committed"]["step"] == 3);
  CHECK(job["ranks_missing"].empty());
  CHECK(job["slots"].size() == 2);
}

TEST_CASE("daemon link: an open while the daemon stops says so", "[unit][client]") {
  const DaemonPlace place;
  open(place).reset();
  const pid_t pid = place.daemon();
  REQUIRE(::kill(pid, SIGSTOP) == 0);
  while (!os::is_stopped(pid).value()) std::this_thread::yield();
  const auto refused =
      open_link(place.options, std::chrono::steady_clock::now() + std::chrono::milliseconds(300));
  REQUIRE_FALSE(refused);
  INFO(refused.error().text());
  CHECK(refused.error().text().find(fmt::format("pid {}, which is stopped", pid)) !=
        std::string::npos);
  REQUIRE(::kill(pid, SIGCONT) == 0);
  open(place);
}

TEST_CASE("daemon link: a step that died with its daemon is not waited for", "[unit][client]") {
  const DaemonPlace place;
  const auto layout = small_layout(2000);
  const auto link = open(place);
  start_and_capture(*link, layout, Step{2});
  place.kill_daemon();
  // Durable is what it never was: the answer comes when the next daemon serves.
  const auto waited = link->wait(Step{2}, Level::durable, soon());
  REQUIRE_FALSE(waited);
  CHECK(waited.error().code() == Errc::not_found);
  CHECK(waited.error().text().find("died") != std::string::npos);
}

TEST_CASE("daemon link: a daemon flushes before it ends, and a next one takes over",
          "[unit][client]") {
  DaemonPlace place;
  place.options.dir = place.directory.file("checkpoints");
  const auto layout = small_layout(2000);
  const auto link = open(place);
  start_and_capture(*link, layout, Step{2});
  const auto daemon = os::open_process(place.daemon());
  REQUIRE(daemon);
  REQUIRE(os::kill_process(*daemon, SIGTERM));
  for (std::uint64_t step = 3; link->counters().daemon_restarts == 0; ++step)
    capture(*link, layout, Step{step});
  capture(*link, layout, Step{1'000'000});
  CHECK(link->wait(Step{1'000'000}, Level::committed, soon()));
  CHECK(std::filesystem::exists(place.options.dir + "/latest"));
  CHECK(place.log().find("ends: SIGTERM") != std::string::npos);
  CHECK(place.log().find("left behind") == std::string::npos);
  CHECK(place.log().find("not all was flushed") == std::string::npos);
}

TEST_CASE("daemon link: a run that was closed gives its name to the next, with another directory",
          "[unit][client]") {
  DaemonPlace place;
  place.options.save_storage_interval.steps = 1000;
  place.options.open_deadline = std::chrono::seconds(30);
  const auto layout = small_layout(2000);
  for (const char* name : {"first", "second", "third"}) {
    place.options.dir = place.directory.file(name);
    const auto link = open(place);
    start_and_capture(*link, layout, Step{1});
    REQUIRE(link->close(soon()));
    CHECK(std::filesystem::exists(place.options.dir + "/step-000000001/manifest.json"));
  }
}

TEST_CASE("daemon link: a restored_ok that died with its daemon goes to the next one",
          "[unit][client]") {
  DaemonPlace place;
  place.options.dir = place.directory.file("checkpoints");
  place.options.save_storage_interval.steps = 1;
  const auto layout = small_layout(2000);
  {
    const auto link = open(place);
    start_and_capture(*link, layout, Step{1});
    REQUIRE(link->wait(Step{1}, Level::durable, soon()));
    capture(*link, layout, Step{2});
    REQUIRE(link->wait(Step{2}, Level::durable, soon()));
  }
  for (int life = 0; life < 2; ++life) REQUIRE(restored_step(*open(place), layout) == Step{2});
  {
    const auto link = open(place);
    REQUIRE(restored_step(*link, layout) == Step{2});  // Once more, and it is passed by.
    const auto daemon = os::open_process(place.daemon());
    REQUIRE(daemon);
    REQUIRE(os::kill_process(*daemon, SIGSTOP));
    REQUIRE(link->restored_ok(Step{2}));
    place.kill_daemon();
    const std::string timelines = place.options.dir + "/.libckpt/timelines.json";
    const auto is_cleared = [&timelines] {
      const auto stored = nlohmann::json::parse(os::read_file(timelines, 1 << 16).value());
      return stored["restore_counts"].dump().find("\"times\":0") != std::string::npos;
    };
    const Deadline deadline = soon();
    while (!is_cleared() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    REQUIRE(is_cleared());
  }
  place.kill_daemon();
  const auto link = open(place);
  CHECK(restored_step(*link, layout, RestoreSource::storage) == Step{2});
}

TEST_CASE("daemon link: a bigger layout gets bigger Slots", "[unit][client]") {
  const DaemonPlace place;
  const auto small = small_layout(1000), big = small_layout(100'000, 2);
  const auto link = open(place);
  start_and_capture(*link, small, Step{2});
  REQUIRE(link->set_layout(big, soon()));
  const auto granted = take(*link, Step{3});
  REQUIRE(granted.has_value());
  CHECK(granted->bytes.size() >= big.slot_bytes);
  link->abandon(*granted);
  capture(*link, big, Step{4});
  CHECK(link->wait(Step{4}, Level::committed, soon()));
}

TEST_CASE("daemon link: a budget that is too small is refused with the numbers", "[unit][client]") {
  const DaemonPlace place;
  const auto link = open(place);
  const auto refused = link->set_layout(small_layout(20'000'000), soon());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::exhausted);
  CHECK(refused.error().message().find("64.0 MiB") != std::string::npos);
}

TEST_CASE("daemon link: a trainer that was killed is replaced, though its worker lives on",
          "[unit][client]") {
  const DaemonPlace place;
  const auto layout = small_layout(2000);
  int worker_pipe[2];
  REQUIRE(::pipe(worker_pipe) == 0);
  TrainerProcess first([&] {
    auto opened = open_link(place.options, soon());
    if (!opened || !capture_in_child(**opened, layout, Step{5})) return false;
    // The worker holds copies of every descriptor, and may not use the Link.
    if (const pid_t worker = ::fork(); worker == 0) {
      const Status waited = (*opened)->wait(Step{1}, Level::captured, soon());
      const bool refuses = !waited && waited.error().code() == Errc::invalid_argument &&
                           !(*opened)->take_slot(Step{6});
      const pid_t self = refuses ? ::getpid() : 0;
      if (::write(worker_pipe[1], &self, sizeof(self)) != sizeof(self)) ::_exit(1);
      ::pause();
    }
    ::kill(::getpid(), SIGKILL);
    return false;
  });
  CHECK(WIFSIGNALED(first.wait()));
  pid_t worker = 0;
  REQUIRE(::read(worker_pipe[0], &worker, sizeof(worker)) == sizeof(worker));
  REQUIRE(worker != 0);

  const auto link = open(place);
  CHECK(restored_step(*link, layout) == Step{5});
  ::kill(worker, SIGKILL);
  ::close(worker_pipe[0]);
  ::close(worker_pipe[1]);
}

TEST_CASE("daemon link: a stopped trainer is killed when its place is taken", "[unit][client]") {
  const DaemonPlace place;
  const auto layout = small_layout(2000);
  TrainerProcess zombie([&] {
    auto opened = open_link(place.options, soon());
    if (!opened || !capture_in_child(**opened, layout, Step{4})) return false;
    const auto granted = take(**opened, Step{5});
    if (!granted) return false;
    std::memset(granted->bytes.data(), 99, layout.slot_bytes / 2);
    ::raise(SIGSTOP);
    return false;
  });
  int status = 0;
  REQUIRE(::waitpid(zombie.pid, &status, WUNTRACED) == zombie.pid);
  REQUIRE(WIFSTOPPED(status));

  const auto link = open(place);
  CHECK(restored_step(*link, layout) == Step{4});
  ::kill(zombie.pid, SIGCONT);
  status = zombie.wait();
  CHECK(WIFSIGNALED(status));
  capture(*link, layout, Step{5});
  CHECK(link->wait(Step{5}, Level::committed, soon()));
}

TEST_CASE("daemon link: a newcomer that is refused does not cost a stopped trainer its life",
          "[unit][client]") {
  const DaemonPlace place;
  TrainerProcess stopped([&] {
    auto opened = open_link(place.options, soon());
    if (!opened) return false;
    ::raise(SIGSTOP);
    return true;
  });
  int status = 0;
  REQUIRE(::waitpid(stopped.pid, &status, WUNTRACED) == stopped.pid);
  REQUIRE(WIFSTOPPED(status));
  Options elsewhere = place.options;
  elsewhere.dir = place.directory.file("checkpoints");
  const auto refused = open_link(elsewhere, soon());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::invalid_argument);
  ::kill(stopped.pid, SIGCONT);
  CHECK(stopped.wait() == 0);
}

TEST_CASE("daemon link: a Slot stays that of a dying trainer until its process is truly gone",
          "[unit][client]") {
  // A sanitizer asks through a pipe whether memory can be read: where no more descriptors can be
  // had it takes every object for broken.
  if (test::is_sanitized) {
    WARN("left out under a sanitizer: it needs pipes where none can be had");
    return;
  }
  // As a GPU that copies on behind a trainer which was killed: its connection has ended, its main
  // thread is a zombie or waits, and its Slot is still written to.
  const bool is_zombie = GENERATE(false, true);
  const DaemonPlace place;
  const auto layout = small_layout(2000);
  Pipe copying;
  TrainerProcess dying([&] {
    auto opened = open_link(place.options, soon());
    if (!opened || !capture_in_child(**opened, layout, Step{4})) return false;
    const auto granted = take(**opened, Step{5});
    if (!granted || !lose_connections()) return false;
    std::thread gpu([&copying, bytes = granted->bytes] {
      for (unsigned round = 0;; ++round) {
        std::memset(bytes.data(), static_cast<int>(0xd0 + round % 16), bytes.size());
        if (round == 0 && !copying.say()) ::_exit(1);
      }
    });
    if (is_zombie) ::syscall(SYS_exit, 0);  // Ends this thread alone, and destroys nothing.
    gpu.join();
    return false;
  });
  REQUIRE(copying.hear());

  const auto link = open(place);
  std::atomic<bool> has_slots{false};
  Status laid_out;
  std::thread newcomer([&] {
    laid_out = link->set_layout(layout, soon());
    has_slots = true;
  });
  exchange_with_daemon(place, 100);
  CHECK_FALSE(has_slots);
  ::kill(dying.pid, SIGKILL);
  newcomer.join();
  REQUIRE(laid_out);
  // The half copied step was never published, and nobody writes into the step captured now.
  CHECK(restored_step(*link, layout) == Step{4});
  for (std::uint64_t step = 5; step <= 8; ++step) capture(*link, layout, Step{step});
  REQUIRE(link->wait(Step{8}, Level::committed, soon()));
  CHECK(restored_step(*link, layout) == Step{8});
  CHECK(WIFSIGNALED(dying.wait()));
}

TEST_CASE("daemon link: a running older trainer is fenced, makes way at once, and lives on",
          "[unit][client]") {
  const DaemonPlace place;
  const auto layout = small_layout(2000);
  Pipe ready, leave;
  TrainerProcess older([&] {
    auto opened = open_link(place.options, soon());
    if (!opened || !capture_in_child(**opened, layout, Step{2}) || !ready.say()) return false;
    const auto waited = (*opened)->wait(Step{2}, Level::durable, soon());  // It has no directory.
    return !waited && waited.error().text().find("taken over") != std::string::npos &&
           !(*opened)->take_slot(Step{3}) && leave.hear();
  });
  REQUIRE(ready.hear());
  const auto link = open(place);
  CHECK(restored_step(*link, layout) == Step{2});
  capture(*link, layout, Step{3});
  CHECK(link->wait(Step{3}, Level::committed, soon()));
  REQUIRE(leave.say());
  CHECK(older.wait() == 0);
}

TEST_CASE("daemon link: a fenced trainer keeps the Slot that it writes into, and is named",
          "[unit][client]") {
  const DaemonPlace place;
  const auto layout = small_layout(2000);
  Pipe ready, leave;
  TrainerProcess older([&] {
    auto opened = open_link(place.options, soon());
    if (!opened || !capture_in_child(**opened, layout, Step{2})) return false;
    const auto granted = take(**opened, Step{3});
    if (!granted || !ready.say() || !leave.hear()) return false;
    std::memset(granted->bytes.data(), 0xee, granted->bytes.size());
    (*opened)->abandon(*granted);
    return leave.hear();
  });
  REQUIRE(ready.hear());
  const auto link = open(place);
  // The notice comes after the answer to attach: until then the deadline says less.
  std::string text;
  const Deadline deadline = soon();
  while (text.find("older trainer of rank 0") == std::string::npos &&
         std::chrono::steady_clock::now() < deadline) {
    const Status refused = link->set_layout(layout, std::chrono::steady_clock::now());
    REQUIRE_FALSE(refused);
    text = refused.error().text();
  }
  CHECK(text.find("older trainer of rank 0, pid " + std::to_string(older.pid)) !=
        std::string::npos);
  REQUIRE(leave.say());
  CHECK(restored_step(*link, layout) == Step{2});
  REQUIRE(leave.say());
  CHECK(older.wait() == 0);
}

TEST_CASE("daemon link: two trainers at one instant start one daemon", "[unit][client]") {
  DaemonPlace place;
  place.options.world_size = 3;
  std::vector<std::unique_ptr<TrainerProcess>> trainers;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    trainers.push_back(std::make_unique<TrainerProcess>([&place, rank] {
      Options options = place.options;
      options.rank = rank;
      auto opened = open_link(options, soon());
      return opened && capture_in_child(**opened, small_layout(500, 1, rank), Step{2});
    }));
  }
  for (auto& trainer : trainers) CHECK(trainer->wait() == 0);
  const std::string log = place.log(), ready = "ready on ";
  const auto found = log.find(ready);
  REQUIRE(found != std::string::npos);
  CHECK(log.find(ready, found + 1) == std::string::npos);
}

TEST_CASE("daemon link: a daemon that cannot start is reported with its last words",
          "[unit][client]") {
  DaemonPlace place;
  SECTION("there is no such program") {
    place.options.daemon_path = "/nonexistent/ckptd";
    const auto link = open_link(place.options, soon());
    REQUIRE_FALSE(link);
    CHECK(link.error().message().find("/nonexistent/ckptd") != std::string::npos);
    CHECK(link.error().message().find("option daemon_path (environment LIBCKPT_DAEMON_PATH)") !=
          std::string::npos);
  }
  SECTION("it ends at once") {
    place.options.daemon_path = "/bin/false";
    const auto link = open_link(place.options, soon());
    REQUIRE_FALSE(link);
    CHECK(link.error().message().find("ended") != std::string::npos);
    CHECK(link.error().message().find("ckptd.log") != std::string::npos);
  }
  SECTION("the runtime directory lets others in") {
    REQUIRE(std::filesystem::create_directory(place.options.runtime_dir));
    std::filesystem::permissions(place.options.runtime_dir, std::filesystem::perms::all);
    const auto link = open_link(place.options, soon());
    REQUIRE_FALSE(link);
    CHECK(link.error().code() == Errc::invalid_argument);
    CHECK(link.error().message().find("0700") != std::string::npos);
  }
}

TEST_CASE("embedded link: the same session without a second process", "[unit][client]") {
  DaemonPlace place;
  place.options.embedded = true;
  place.options.dir = place.directory.file("checkpoints");
  const auto layout = small_layout(2000);
  const auto link = open(place);
  start_and_capture(*link, layout, Step{3});
  CHECK(restored_step(*link, layout) == Step{3});
  capture(*link, layout, Step{4});
  CHECK(link->wait(Step{4}, Level::committed, soon()));
  CHECK_FALSE(std::filesystem::exists(place.options.runtime_dir));
}

}  // namespace ckpt::client
