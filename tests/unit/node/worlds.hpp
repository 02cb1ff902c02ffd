// Cluster: engines of several nodes on a simulated network, and worlds of trainers that come and go
// on them, each with another number of ranks.
//
// The ranks of a world divide one tensor of numbers evenly, or all hold it and divide its capture.
// Every number follows from its step and its place.
#pragma once

#include <boost/asio/io_context.hpp>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "node/engine.hpp"
#include "support/fake_clock.hpp"
#include "support/heap_memory.hpp"
#include "support/memory_file_system.hpp"
#include "support/pending.hpp"
#include "support/sim_network.hpp"
#include "unit/node/rank.hpp"

namespace ckpt::test {

using node::AttachRequest;
using node::Engine;
using node::EngineOptions;
using node::Seams;

inline constexpr std::uint64_t numbers_in_all = 120 * 256;

struct Rules {
  std::string directory = {};
  bool has_whole_tensors = false;
  bool are_copies = false;    // Every rank wants all of the tensor, and captures its part.
  bool captures_all = false;  // Every rank captures all of the tensor, and says that it is a copy.
  bool joins_shards = false;
  std::uint64_t budget = 64 * MiB;
  std::uint32_t replicas = 2;
  std::optional<std::uint32_t> max_ckpt_num = std::nullopt;
  std::optional<Step> wanted = std::nullopt;
  SourceChoice source = SourceChoice::any;
  Duration verify_every = std::chrono::minutes(10);  // Also of stored files.
  bool skips_unchanged = false;
  bool is_frozen = false;  // Of each rank's numbers only the last fifteenth changes at each step.
  std::vector<std::uint32_t> stages =
      {};  // By rank: the rank whose whole tensor it has, if others.
  std::optional<std::uint32_t> contradicts = std::nullopt;  // Declares a longer tensor than others.
  std::vector<Crc32> noted = {};  // By rank: its checksum of a tensor that ranks divide.
  bool is_at_once = false;    // No time passes between the end of the world before and this one.
  bool has_old_list = false;  // The list of nodes has the number of the world before.
};

// Two ranks, 60 KiB of numbers for each, in Chunks of 4 KiB; with a header, and a page of blobs.
inline constexpr std::uint64_t shard_bytes = 17 * 4 * KiB;

// Most numbers do not change, and the peers are not sent again what they have.
inline Rules frozen(bool skips = true) {
  Rules rules;
  rules.skips_unchanged = skips;
  rules.is_frozen = true;
  return rules;
}

struct Trainer final : Rank {
  void offered(control::Offer it) override;
  std::uint32_t rank = 0;
  Engine* engine = nullptr;
  std::optional<control::Offer> offer;
  std::uint32_t last_slot = 0;  // That it captured in, or was offered.
  std::vector<std::uint32_t> weight;
  std::map<std::string, std::vector<std::uint32_t>> whole_tensors;
  std::optional<std::uint32_t> blob_of;  // The rank whose blobs came.
};

// Nodes keep their memory while worlds come and go.
class Cluster {
 public:
  Cluster() { disk_.put_directory("/scratch"); }
  ~Cluster();

  // One rank for each letter, on the node of that name. All ask for a restore.
  void ask(const std::string& places, Rules rules = {});
  // The same, and all have begun.
  void begin(const std::string& places, Rules rules = {});
  bool have_answers() const {
    return std::ranges::all_of(ranks_, [](const auto& it) { return it->answer.has_value(); });
  }

  void capture(Step step);
  void capture(Trainer& trainer, Step step);
  std::uint32_t begin_capture(Trainer& trainer, Step step);  // Its Slot.
  void fill(Trainer& trainer, std::uint32_t slot, Step step);
  // Changes a byte of the rank's own copy, behind the engine's back: in some page of its tensor.
  void damage(std::size_t of_rank, std::size_t page = 0);
  // All copies but that one, which is whole yet.
  void damage_replicas(std::size_t of_rank, std::size_t page = 0);
  void commit(Step step);
  // From now on the rank captures so much of its part.
  enum class Share : std::uint8_t { all, half };
  void declare(std::uint32_t rank, Share share);
  // For each connection, from now on.
  void limit_streams(std::uint64_t bytes_per_second);
  Time now() const { return clock_.now(); }
  void store(Step step);  // Commits it, and waits until it is on storage.

  // Every rank has exactly what it wants of what was saved at `step` by `saved_by` ranks.
  void check_restored(Step step, std::uint32_t saved_by);

  void end_world(std::chrono::seconds pause = std::chrono::seconds(1));
  void close_world();  // In order; the trainers go as soon as they are told.
  void lose(const std::string& name);
  template <class Claim>
  bool pass_until(Claim claim) {
    const Time limit = clock_.after(std::chrono::minutes(2));
    clock_.poll();
    while (!claim() && clock_.now() < limit && clock_.advance_to_next()) {
    }
    return claim();
  }
  // Those that have Slots of their own on the node.
  std::set<std::uint32_t> ranks_with_slots(const std::string& name);
  nlohmann::json status(const std::string& name);
  Engine& engine(const std::string& name) { return *nodes_.at(name).engine; }
  // A Task of an engine goes on while time passes.
  template <class T>
  Pending<T> begin_task(Task<T> task) {
    return start(context_, std::move(task));
  }
  template <class T>
  Result<T> end_task(Pending<T>& pending) {
    return finish(clock_, pending);
  }
  template <class T>
  Result<T> run(Task<T> task) {
    auto pending = begin_task(std::move(task));
    return end_task(pending);
  }
  void flush(Step step);
  MemoryDisk& disk() { return disk_; }
  void rot(const std::string& path);  // A bit of the file flips, behind its header.
  Trainer& rank(std::size_t index) { return *ranks_.at(index); }

 private:
  struct OneNode {
    std::unique_ptr<wire::Network> front;
    std::unique_ptr<Engine> engine;
  };
  void open(const std::string& name, std::uint64_t budget);
  format::Layout captured_by(std::uint32_t rank) const;
  std::uint32_t stage_of(std::uint32_t rank) const;
  std::uint32_t number_at(Step step, std::uint64_t place) const;
  void stop(OneNode& node);

  asio::io_context context_;
  FakeClock clock_{context_};
  HeapSource memory_;
  MemoryDisk disk_{1};
  MemoryFileSystem files_{disk_, &clock_};
  SimNetwork network_{1};
  std::map<std::string, OneNode> nodes_;
  std::vector<std::unique_ptr<Trainer>> ranks_;
  Rules rules_;
  std::uint32_t world_size_ = 0;
  std::set<std::uint32_t> with_half_;  // Ranks; see declare().
  std::uint32_t layout_version_ = 0;
  std::uint64_t incarnation_ = 0;
  std::uint64_t boots_ = 0;
};

}  // namespace ckpt::test
