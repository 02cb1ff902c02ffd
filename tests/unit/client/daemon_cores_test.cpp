// Goal:   the daemon keeps off the cores that trainers are bound to, also when such a trainer has
//         started it, has them back when the trainer is gone, and always has at least one.
// Method: real processes: trainers that bind themselves start the real ckptd, and the cores of all
//         of its threads are read.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <thread>

#include "os/cores.hpp"
#include "support/patience.hpp"
#include "unit/client/daemon_place.hpp"

namespace ckpt::client {
namespace {

using test::soon;

// A process that is bound to some cores before it opens its Link, and stays until it is let go.
class BoundTrainer {
 public:
  BoundTrainer(const Options& options, const os::CoreSet& cores) {
    int ready[2], go[2];
    REQUIRE(::pipe(ready) == 0);
    REQUIRE(::pipe(go) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(go[1]);
      const bool is_bound = os::bind_threads(cores).has_value();
      const auto link = open_link(options, soon());
      const char told = is_bound && link ? 'y' : 'n';
      if (::write(ready[1], &told, 1) != 1) ::_exit(1);
      char ends = 0;
      ::_exit(static_cast<int>(::read(go[0], &ends, 1)));
    }
    ::close(ready[1]);
    ::close(go[0]);
    go_ = os::Fd(go[1]);
    char told = 'n';
    REQUIRE(::read(ready[0], &told, 1) == 1);
    ::close(ready[0]);
    REQUIRE(told == 'y');
  }
  ~BoundTrainer() { end(); }

  void end() {
    go_.reset();
    if (pid_ > 0) ::waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
  os::Fd go_;
};

struct DaemonOnCores : DaemonPlace {
  DaemonOnCores() { options.world_size = 2; }

  Options of_rank(std::uint32_t rank) const {
    Options own = options;
    own.rank = rank;
    return own;
  }
  // For each of the daemon's threads.
  std::vector<os::CoreSet> cores() const {
    std::vector<os::CoreSet> all;
    const std::string threads = "/proc/" + std::to_string(daemon()) + "/task";
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(threads, error)) {
      const auto cores = os::cores_of(std::stoi(entry.path().filename().string()));
      if (cores) all.push_back(*cores);
    }
    return all;
  }
  bool is_on(const os::CoreSet& wanted) const {
    const auto all = cores();
    return !all.empty() && std::all_of(all.begin(), all.end(),
                                       [&](const os::CoreSet& one) { return one == wanted; });
  }
  // The daemon sees a trainer's end when the kernel tells it.
  bool comes_to(const os::CoreSet& wanted) const {
    const Deadline deadline = soon();
    while (!is_on(wanted)) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }
};

// All that this test may use, the first of them, and the others. With one core all three are that.
struct Machine {
  Machine() : all(os::cores_of(0).value()), others(all) {
    first.set(all._Find_first());
    if (all != first) others = all & ~first;
  }
  os::CoreSet all, others, first;
};

}  // namespace

TEST_CASE("daemon cores: a daemon leaves a bound trainer its cores while that lives",
          "[unit][client]") {
  const Machine machine;
  const DaemonOnCores place;
  BoundTrainer bound(place.of_rank(0), machine.first);
  CHECK(place.is_on(machine.others));
  // It is never left without any.
  BoundTrainer other(place.of_rank(1), machine.others);
  CHECK(place.is_on(machine.all));
  other.end();
  CHECK(place.comes_to(machine.others));
  bound.end();
  CHECK(place.comes_to(machine.all));
}

TEST_CASE("daemon cores: a trainer that is not bound takes none of them", "[unit][client]") {
  const Machine machine;
  const DaemonOnCores place;
  const BoundTrainer trainer(place.of_rank(0), machine.all);
  CHECK(place.is_on(machine.all));
}

TEST_CASE("daemon cores: an option keeps the daemon on the trainer's cores", "[unit][client]") {
  const Machine machine;
  const DaemonOnCores place;
  ::setenv("LIBCKPT_ALL_CORES", "false", 1);
  const BoundTrainer bound(place.of_rank(0), machine.first);
  ::unsetenv("LIBCKPT_ALL_CORES");
  CHECK(place.is_on(machine.first));
}

}  // namespace ckpt::client
