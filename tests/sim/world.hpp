// World: a whole cluster in one thread: daemons, trainers, network, disk and launcher, by one seed.
//
// Every node has its own io_context, polled by hand in an order drawn from the seed; when nothing
// is ready, virtual time jumps to the next event. Killing a node destroys its context and with it
// all suspended frames. After the faults stop, everything must converge.
//
// An elastic world has another number of ranks in each launch, and no storage, unless it is stored.
// In a world of copies each rank captures a share of one tensor and gets all of it back. In one of
// pauses nodes stand still for seconds, shorter or longer than makes them lost. In one of slow
// Slots memory takes its time on some machines.
//
//   run(): faults (kills, zombies, partitions, slow and failing disk, flips) --> calm --> checks
//          --> of each third seed, in calm: bits flip between two lives of an elastic world,
//              storage hangs, the coordinator dies, a file rots
//
// Laws, checked when they can first be broken: I1 no committed step is lost within the tolerance,
// I2 right bytes only, I3 all ranks begin from one step, I4 no durable step is lost, I5 the fenced
// are refused; no step is given up that every rank captured, committed that was given up, or
// counted as lost that no trainer came to. Then liveness: in calm, steps are captured, committed
// and published again, a lost node leaves no step without its copies for long, damage in memory is
// healed before anybody needs it, and a close ends by its deadline, whatever storage does.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/sim_trainer.hpp"
#include "sim/world_options.hpp"
#include "storage/catalog.hpp"
#include "support/fake_clock.hpp"
#include "support/memory_file_system.hpp"
#include "support/sim_network.hpp"

namespace ckpt::sim {

inline const std::string job_directory = "/ckpt";
inline constexpr Duration settling_time = std::chrono::seconds(6);  // Longer than any detection.
// How often a daemon looks for damage in its memory and its files.
inline constexpr Duration verify_every = std::chrono::seconds(7);
// Some of them hit the bytes of each copy: a Slot is small, and has hardly any room to spare.
inline constexpr std::uint64_t flips_to_hit_all = 1000;

class World final : public Oracle {
 public:
  explicit World(WorldOptions options);
  ~World() override;
  Outcome run();

  void began(std::uint32_t rank, std::uint64_t group, const control::Begun& begun) override;
  void reached(std::uint32_t rank, format::StepId at, Level level, bool is_base) override;
  void skipped(std::uint64_t group, format::StepId at) override;
  void dropped(std::uint64_t group, format::StepId at) override;
  void came_to(format::StepId at) override;
  void violated(const std::string& what) override;

 private:
  struct Machine;  // A node with its daemon.
  struct Group {   // The start of the first rank of a launch.
    std::optional<format::StepId> restored;
    std::uint64_t timeline = 0;
  };

  bool has_storage() const { return !options_.is_elastic || options_.is_stored; }

  // Time.
  Time now() const;
  bool poll_all();
  void advance(Duration duration);  // Runs everything on the way.
  void step_time(Time limit);

  // The cluster.
  std::vector<std::string> names_of_machines() const;
  void start_machine(const std::string& name);
  void kill_machine(std::string name);
  void start_trainer(Machine& machine, std::uint32_t rank, TrainerPlan plan);
  void restart_daemon(const std::string& name);  // Its trainers live on.
  void draw_world_size();
  void launch();
  void keep_one_member(std::vector<std::string>& nodes);
  std::vector<Step> steps_to_look_at();
  void end_launch();
  void supervise();  // The launcher: a launch with a dead rank is ended, and a new one begun.
  std::vector<Node> node_list() const;
  void name_members();
  std::string status_of(const std::string& machine) const;
  void pace_trainers();

  // Faults.
  void inject_fault();
  void kill_random_trainer();
  void kill_random_machine();
  void pause_random_machine();
  void disturb_disk();
  void flip_memory();
  void flip_memory_of(const std::string& machine, std::uint64_t flips);
  void calm();
  void hang_storage_of(const std::string& machine, Time end);
  void memory_lost(const std::string& node);

  // Checks.
  void check_durable(const control::Begun& begun, bool is_blind);
  void check_newest_seen(const control::Begun& begun);
  void check_storage();
  void check_converges();
  void check_checkpoints();
  std::vector<storage::Checkpoint> good_checkpoints();  // Ascending; on the disk as it is.

  // Disasters in calm (world_disasters.cpp).
  void disasters();
  void flip_between_lives();
  void hang_storage();
  void hang_writer();
  void lose_coordinator();
  bool holds(const std::string& machine, std::uint32_t rank, format::StepId at) const;
  void rot_storage();
  // In world_laws.cpp.
  bool has_all_copies() const;
  void check_redundancy();
  void check_healing();
  std::uint64_t copies_healed_on(const std::string& machine) const;
  void check_close();
  void count_unchanged();

  WorldOptions options_;
  Random random_;
  Outcome outcome_;
  test::MemoryDisk disk_;
  test::SimNetwork network_;
  Time now_{std::chrono::hours(1)};
  std::map<std::string, std::unique_ptr<Machine>> machines_;
  std::vector<std::string> members_;                   // Machines of the running launch.
  std::map<std::string, std::string> names_;           // By machine: as its list of nodes has it.
  std::vector<std::shared_ptr<SimTrainer>> trainers_;  // For the running launch, by rank.
  std::vector<std::pair<std::string, std::shared_ptr<SimTrainer>>> zombies_;
  std::uint32_t world_size_ = 2;
  std::uint32_t replicas_ = 2;
  Interval mem_interval_;
  bool keeps_members_ = false;    // The next launch runs on the same nodes.
  bool takes_all_nodes_ = false;  // The next launch has a node for each rank.
  bool keeps_world_size_ = false;
  bool holds_launches_ = false;  // The launcher sleeps.
  std::uint64_t group_ = 0;
  std::uint64_t next_name_ = 0;
  std::uint64_t owner_ = 0;
  std::optional<Time> relaunch_at_;
  bool may_ask_older_ = false;
  bool may_rename_ = false;
  std::optional<Step> wanted_;  // By the newest launch; of whichever timeline has it.
  bool has_faults_ = true, is_noisy_ = false, flips_memory_ = false;
  std::map<std::uint64_t, Group> groups_;
  std::map<std::uint64_t, Step> came_to_;  // By timeline: the newest that a trainer came to.
  std::map<std::uint64_t, std::optional<format::StepId>> began_history_;  // Likewise: its base.
  std::uint64_t skip_one_in_ = 0;

  // The promises.
  std::optional<format::StepId> committed_;
  std::uint64_t losses_since_commit_ = 0;  // Nodes whose memory was lost.
  std::set<std::string> heard_of_commit_;  // Machines of the world in which it was committed.
  std::size_t members_at_commit_ = 1;
  // Since the newest launch began, no memory was lost, and all nodes hear one another.
  bool is_undisturbed_ = false;
  bool are_links_cut_ = false;
  Time flipped_at_{};
  bool may_be_damaged_ = false;  // Bits have flipped since the committed step was captured.
  // A launch began with nothing. Steps on nodes outside of it are dropped: without storage nothing
  // would say which of the two is newer.
  bool drops_memory_outside_ = false;
  std::map<format::StepId, int> times_begun_;  // By what was restored.
  bool was_whole_at_commit_ = false;           // All members alive and connected for long enough.
  Time disturbed_at_{};                        // Last time that a node or a link was lost.
  std::optional<format::StepId> durable_;
  std::vector<Step> published_;  // The last ones, oldest first.
  std::uint64_t read_faults_at_durable_ = 0;
  bool durable_is_demanded_ = false;    // By the next restore.
  std::set<format::StepId> abandoned_;  // Steps that a restore went back behind.
  std::set<format::StepId> given_up_;   // As trainers heard.
  std::set<std::pair<std::uint64_t, format::StepId>> skipped_;  // By launch.
  std::uint64_t memory_disturbed_in_ = 0;  // The last launch in which memory was lost or damaged.
  bool is_training_paused_ = false;
};

}  // namespace ckpt::sim
