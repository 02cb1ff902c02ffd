// A load by another number of ranks: from storage against one of the same bytes by the ranks that
// saved them, and from peers' memory against storage.
//
// Both sides run the public restore(). Targets are wiped before, and compared afterwards.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "bench/daemons.hpp"
#include "bench/harness.hpp"
#include "bench/must.hpp"
#include "bench/trainer.hpp"
#include "bench/two_hosts.hpp"

namespace {

using ckpt::RestoreSource;
using std::chrono::steady_clock;

constexpr std::chrono::minutes patience(1);
constexpr std::chrono::milliseconds pause(20);
constexpr std::size_t small_bytes = 16 << 20;

using Ranks = std::vector<std::unique_ptr<bench::Trainer>>;

// All at once, as ranks do it.
template <class Work>
void on_all(Ranks& ranks, const Work& work) {
  std::vector<std::thread> threads;
  for (std::size_t rank = 1; rank < ranks.size(); ++rank)
    threads.emplace_back([&, rank] { work(*ranks[rank]); });
  work(*ranks.front());
  for (std::thread& thread : threads) thread.join();
}

// A step that one rank skips is dropped by all, and followed by another.
void save_a_step(Ranks& ranks, std::uint64_t& step, ckpt::Level level) {
  const auto until = steady_clock::now() + patience;
  while (steady_clock::now() < until) {
    const ckpt::Step now{++step};
    bool is_captured = true;
    for (const auto& rank : ranks)
      if (bench::must(rank->checkpointer().save(now)) != ckpt::SaveOutcome::started)
        is_captured = false;
    if (is_captured && ranks.front()->checkpointer().wait(now, level, patience)) return;
    std::this_thread::sleep_for(pause);
  }
  bench::give_up("no step is saved");
}

// A half of the state that `ranks` of them saved, read by one rank of two from their checkpoint.
class Half {
 public:
  Half(const bench::Daemon& daemon, const std::string& directory, std::size_t bytes,
       std::uint32_t ranks)
      : path_(directory + "/resharded-" + std::to_string(ranks)), reader_(bytes, {1, 2}) {
    std::filesystem::remove_all(path_);
    ckpt::Options options;
    options.job = "bench-reshard-" + std::to_string(ranks);
    options.dir = path_;
    options.save_storage_interval = {1, {}};
    options.runtime_dir = daemon.runtime_dir();
    options.world_size = ranks;
    Ranks all;
    for (options.rank = 0; options.rank < ranks; ++options.rank) {
      all.push_back(std::make_unique<bench::Trainer>(bytes, bench::Part{options.rank, ranks}));
      all.back()->fill();
      all.back()->open(options);
    }
    on_all(all, [](bench::Trainer& trainer) { trainer.restore(); });  // Nothing: all begin.
    std::uint64_t step = 0;
    save_a_step(all, step, ckpt::Level::durable);
    all.clear();
    daemon.drop(options.job);
    options.job = "bench-reshard-reader-" + std::to_string(ranks);
    options.dir.clear();
    options.save_storage_interval = ckpt::Interval::automatic();
    options.rank = 1;
    options.world_size = 2;
    reader_.open(options);
  }
  ~Half() { std::filesystem::remove_all(path_); }
  double load() {
    reader_.wipe();
    ckpt::RestoreRequest request;
    request.from = path_;
    return bench::rate(static_cast<double>(reader_.bytes()), [&] {
      if (!reader_.restore(request)) bench::give_up("there is no checkpoint");
    });
  }
  void check() const {
    if (!reader_.is_filled()) bench::give_up("the reader has other bytes than were saved");
  }

 private:
  std::string path_;
  bench::Trainer reader_;
};

void compare_layouts(bench::Harness& harness) {
  const bench::Daemon daemon(harness.disk_directory() + "/reshard");
  const std::string directory = harness.disk_directory();
  Half of_four(daemon, directory, harness.bytes(), 4);
  Half of_two(daemon, directory, harness.bytes(), 2);
  harness.compare(
      {"B21", "load of another layout, by 2 from 4 ranks / of the same, by 2 from 2", 0.85, 0.7},
      [&] { return of_four.load(); }, [&] { return of_two.load(); });
  of_four.check();
  of_two.check();
}

// Four ranks on two nodes. Those of the far one hold the state, a half each; then one rank on the
// near node holds all of it, beside one on the far node.
class Shrinking {
 public:
  Shrinking(const bench::TwoHosts& hosts, const std::string& directory, std::size_t bytes)
      : directory_(directory),
        bytes_(bytes),
        near_(directory + "/near"),
        far_(directory + "/far", hosts.on_far({})) {
    std::filesystem::remove_all(directory + "/checkpoints");
    std::ofstream(directory + "/secret") << std::string(64, 's');
    std::filesystem::permissions(directory + "/secret", std::filesystem::perms::owner_read);
    nodes_ = {{"near", "", hosts.near_address() + ":7751"},
              {"far", "", hosts.far_address() + ":7752"}};
  }
  ~Shrinking() {
    for (const char* name : {"/checkpoints", "/secret"})
      std::filesystem::remove_all(directory_ + name);
  }

  double restore_from(RestoreSource source) {
    save_by_four();
    if (source == RestoreSource::storage) far_.drop(job);
    Ranks half;
    half.push_back(std::make_unique<bench::Trainer>(bytes_));
    half.push_back(std::make_unique<bench::Trainer>(small_bytes, bench::Part{}, "small."));
    half[0]->wipe();
    open(half);
    on_all(half, [](bench::Trainer& trainer) { bench::must(trainer.checkpointer().prepare()); });
    // Another number of ranks restores from storage by a path.
    ckpt::RestoreRequest request;
    if (source == RestoreSource::storage) request.from = directory_ + "/checkpoints";
    std::thread other([&] { half[1]->restore(request); });
    const auto begin = steady_clock::now();
    const auto restored = half[0]->restore(request);
    const std::chrono::duration<double> took = steady_clock::now() - begin;
    other.join();
    if (!restored || restored->source != source)
      bench::give_up("the rank was restored from " +
                     (restored ? restored->source_name : "nothing"));
    if (!half[0]->is_filled()) bench::give_up("the rank has other bytes than were saved");
    half.clear();
    near_.drop(job);
    far_.drop(job);
    return static_cast<double>(bytes_) / took.count();
  }

 private:
  static constexpr const char* job = "bench-shrinking";

  void save_by_four() {
    std::filesystem::remove_all(directory_ + "/checkpoints");
    Ranks four;
    for (std::uint32_t index = 0; index < 2; ++index)
      four.push_back(
          std::make_unique<bench::Trainer>(small_bytes, bench::Part{index, 2}, "small."));
    for (std::uint32_t index = 0; index < 2; ++index)
      four.push_back(std::make_unique<bench::Trainer>(bytes_, bench::Part{index, 2}));
    for (const auto& rank : four) rank->fill();
    open(four);
    on_all(four, [](bench::Trainer& trainer) { trainer.restore(); });
    std::uint64_t step = 0;
    save_a_step(four, step, ckpt::Level::durable);
  }
  void open(Ranks& ranks) {
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
      const bool is_near = rank < ranks.size() / 2;
      ckpt::Options options;
      options.job = job;
      options.dir = directory_ + "/checkpoints";
      options.save_storage_interval = {1, {}};
      options.rank = rank;
      options.world_size = static_cast<std::uint32_t>(ranks.size());
      options.nodes = nodes_;
      options.node = is_near ? "near" : "far";
      options.replicas = 1;  // Else the far node's copy comes near before the clock runs.
      options.secret_file = directory_ + "/secret";
      options.runtime_dir = is_near ? near_.runtime_dir() : far_.runtime_dir();
      ranks[rank]->open(options);
    }
  }

  std::string directory_;
  std::size_t bytes_;
  bench::Daemon near_, far_;
  std::vector<ckpt::Node> nodes_;
};

}  // namespace

int main(int argc, char** argv) {
  ckpt::Log::set_level(ckpt::LogLevel::error);
  bench::Harness harness("reshard", argc, argv);
  const bench::TwoHosts hosts;
  harness.add_condition(hosts.in_words());
  compare_layouts(harness);
  // Each measurement makes the Slots of six ranks, and fills, copies and writes them.
  harness.add_condition("a quarter of the size is restored by half the ranks");
  Shrinking shrinking(hosts, harness.disk_directory(), harness.bytes() / 4);
  harness.compare(
      {"B26", "restore by half the ranks, from a peer's memory / from storage", 2.0, 1.4},
      [&] { return shrinking.restore_from(RestoreSource::peer_memory); },
      [&] { return shrinking.restore_from(RestoreSource::storage); });
  return harness.finish();
}
