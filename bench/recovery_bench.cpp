// Recovery of one rank from its daemon's memory and from a peer's, each against storage: the same
// bytes, two real daemons, the public restore().
//
// Slots are made before the clock runs: they cost the same wherever the bytes come from.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "base/log.hpp"
#include "bench/daemons.hpp"
#include "bench/harness.hpp"
#include "bench/must.hpp"
#include "bench/trainer.hpp"
#include "bench/two_hosts.hpp"

namespace {

using ckpt::RestoreSource;
using std::chrono::steady_clock;

constexpr const char* job = "bench-recovery";
constexpr std::size_t small_bytes = 4096;
constexpr std::chrono::minutes patience(1);
constexpr std::chrono::milliseconds pause(20);

class Cluster {
 public:
  Cluster(const bench::TwoHosts& hosts, const std::string& directory, std::size_t bytes)
      : directory_(directory),
        near_(directory + "/near"),
        far_(directory + "/far", hosts.on_far({})),
        rank_0_(bytes),
        rank_1_(small_bytes) {
    std::filesystem::remove_all(directory + "/checkpoints");
    std::ofstream(directory + "/secret") << std::string(64, 's');
    std::filesystem::permissions(directory + "/secret", std::filesystem::perms::owner_read);
    // On loopback the two differ by their ports.
    nodes_ = {{"near", "", hosts.near_address() + ":7751"},
              {"far", "", hosts.far_address() + ":7752"}};
    rank_0_.fill();
    rank_1_.fill();
    open();
    std::thread other([this] { rank_1_.restore(); });
    rank_0_.restore();  // There is nothing yet: both begin.
    other.join();
    save_a_step();
  }
  ~Cluster() {
    leave();
    for (const char* name : {"/checkpoints", "/secret"})
      std::filesystem::remove_all(directory_ + name);
  }

  // One restore of rank 0 from `source`, in bytes per second.
  double restore_from(RestoreSource source) {
    leave();
    if (source != RestoreSource::own_memory) near_.drop(job);
    if (source == RestoreSource::storage) far_.drop(job);
    rank_0_.wipe();
    open();
    bench::must(rank_0_.checkpointer().prepare());
    bench::must(rank_1_.checkpointer().prepare());
    std::thread other([this] { rank_1_.restore(); });
    const auto begin = steady_clock::now();
    const auto restored = rank_0_.restore();
    const std::chrono::duration<double> took = steady_clock::now() - begin;
    other.join();
    if (!restored || restored->source != source)
      bench::give_up("rank 0 was restored from " + (restored ? restored->source_name : "nothing"));
    if (!rank_0_.is_filled()) bench::give_up("rank 0 has other bytes than it saved");
    bench::must(rank_0_.checkpointer().restored_ok(restored->step));
    // The next restore finds a step in every place again.
    if (source != RestoreSource::own_memory) save_a_step();
    return static_cast<double>(rank_0_.bytes()) / took.count();
  }

 private:
  ckpt::Options options_of(std::uint32_t rank) const {
    ckpt::Options options;
    options.job = job;
    options.dir = directory_ + "/checkpoints";
    options.rank = rank;
    options.world_size = 2;
    options.nodes = nodes_;
    options.node = nodes_[rank].name;
    options.save_storage_interval = {1, {}};
    options.max_ckpt_num = 2;
    options.secret_file = directory_ + "/secret";
    options.runtime_dir = rank == 0 ? near_.runtime_dir() : far_.runtime_dir();
    return options;
  }
  void open() {
    rank_0_.open(options_of(0));
    rank_1_.open(options_of(1));
  }
  void leave() {
    rank_0_.leave();
    rank_1_.leave();
  }
  // On storage and in the peer's memory. A step that one of them skipped is dropped by both, and
  // followed by another.
  void save_a_step() {
    const auto until = steady_clock::now() + patience;
    while (steady_clock::now() < until) {
      const ckpt::Step step{++step_};
      const auto outcome_0 = bench::must(rank_0_.checkpointer().save(step));
      const auto outcome_1 = bench::must(rank_1_.checkpointer().save(step));
      const bool is_captured =
          outcome_0 == ckpt::SaveOutcome::started && outcome_1 == ckpt::SaveOutcome::started;
      if (is_captured && rank_0_.checkpointer().wait(step, ckpt::Level::durable, patience)) return;
      std::this_thread::sleep_for(pause);
    }
    bench::give_up("no step becomes durable");
  }

  std::string directory_;
  bench::Daemon near_, far_;
  std::vector<ckpt::Node> nodes_;
  bench::Trainer rank_0_, rank_1_;
  std::uint64_t step_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  ckpt::Log::set_level(ckpt::LogLevel::error);
  bench::Harness harness("recovery", argc, argv);
  const bench::TwoHosts hosts;
  harness.add_condition(hosts.in_words());
  // A measurement that drops memory makes five Slots anew, and fills, copies and writes them. With
  // half the state, all of them end within two minutes.
  const std::size_t bytes = harness.bytes() / 2;
  harness.add_condition("half of the size is restored");
  Cluster cluster(hosts, harness.disk_directory(), bytes);
  const auto from_own = [&] { return cluster.restore_from(RestoreSource::own_memory); };
  const auto from_peer = [&] { return cluster.restore_from(RestoreSource::peer_memory); };
  const auto from_disk = [&] { return cluster.restore_from(RestoreSource::storage); };
  harness.compare({"B11", "recovery from a peer's memory / from disk", 2.0, 1.4}, from_peer,
                  from_disk);
  harness.compare({"B12", "recovery from the daemon's memory / from disk", 12.0, 8.0}, from_own,
                  from_disk);
  return harness.finish();
}
