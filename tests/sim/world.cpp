#include "sim/world.hpp"
#include "base/spawn.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.hpp"
#include "base/units.hpp"
#include "storage/catalog.hpp"
#include "support/heap_memory.hpp"
#include "support/run_task.hpp"
#include "support/sim_compute.hpp"

namespace ckpt::sim {

namespace {

constexpr std::uint32_t checkpoints_kept = 3;
constexpr std::uint32_t nodes_max = 3;
constexpr Duration fault_phase = std::chrono::seconds(20);
constexpr Duration calm_phase_max = std::chrono::seconds(120);

test::SimNetworkOptions noise() {
  test::SimNetworkOptions options;
  options.flip_one_in = 2;
  options.flip_bytes_min = 1024;  // Those of shards: flipped control frames are cases of their own.
  return options;
}

Duration milliseconds(std::uint64_t count) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(count));
}

// On some machines the cores are busy: a capture's checksums end behind those of the next one.
std::chrono::milliseconds hashing_time_max(std::uint64_t boot) {
  return std::chrono::milliseconds(boot % 4 == 0 ? 300 : 3);
}

// Its first step may be late, where the machine stands still.
asio::awaitable<void> run_held(std::shared_ptr<SimTrainer> trainer) {
  co_await trainer->run();
}

// SlowSlots: on some machines the first Slots take their time, and a restore may be over before the
// last one of its rank is there. In a world of slow Slots all of them do on others: a step may be
// sealed before a peer has room for the one before.
class SlowSlots final : public arena::MemorySource {
 public:
  SlowSlots(test::HeapSource& memory, Clock& clock, std::uint64_t boot, bool may_stay_slow)
      : memory_(memory),
        clock_(clock),
        slow_left_(boot % 3 == 0 ? 3 : 0),
        stays_slow_(may_stay_slow && boot % 2 == 0) {}

  Task<std::unique_ptr<arena::SlotMemory>> allocate(std::uint64_t bytes) override {
    const bool is_slow = stays_slow_ || slow_left_ > 0;
    if (slow_left_ > 0) --slow_left_;
    if (is_slow) CKPT_CO_CHECK(co_await sleep_until(clock_, clock_.after(time_each)));
    auto made = co_await memory_.allocate(bytes);
    co_return made;
  }

 private:
  static constexpr std::chrono::milliseconds time_each{400};
  test::HeapSource& memory_;
  Clock& clock_;
  std::uint32_t slow_left_;
  bool stays_slow_;
};

}  // namespace

struct World::Machine {
  Machine(World& world, const std::string& machine_name, std::uint64_t boot)
      : name(machine_name),
        context(std::make_unique<asio::io_context>()),
        clock(*context),
        files(world.disk_, &clock, static_cast<std::uint32_t>(++world.owner_)),
        network(world.network_.add_node(machine_name, clock)),
        compute(clock, boot, hashing_time_max(boot)),
        slow_slots(memory, clock, boot, world.options_.has_slow_slots) {
    clock.advance(world.now_ - clock.now());
    node::EngineOptions options;
    options.name = name;
    options.boot = boot;
    options.memory_budget = 64 * MiB;
    options.chunk_bytes = 4096;
    options.restore_collect_deadline = std::chrono::seconds(20);
    options.verify_every = verify_every;
    options.verify_stored = true;
    options.flush_stalled_after = std::chrono::seconds(2);  // Shorter than a disk's stall may be.
    auto nonces = std::make_shared<Random>(boot);
    options.make_nonce = [nonces] {
      wire::Proof proof;
      for (std::byte& byte : proof) byte = static_cast<std::byte>(nonces->next());
      return proof;
    };
    engine = std::make_shared<node::Engine>(
        context->get_executor(), node::Seams{clock, slow_slots, files, *network, &compute},
        options);
  }

  // Without a jump a node that stood still for long would see each of its deadlines by itself.
  void go_on(Time now) {
    if (clock.now() < now) clock.jump(now - clock.now());
  }

  std::string name;
  Time stands_still_until{};
  std::unique_ptr<asio::io_context> context;
  test::FakeClock clock;
  test::HeapSource memory;
  test::MemoryFileSystem files;
  std::unique_ptr<wire::Network> network;
  test::SimCompute compute;
  SlowSlots slow_slots;
  std::shared_ptr<node::Engine> engine;
};

World::World(WorldOptions options)
    : options_(options), random_(options.seed), disk_(options.seed), network_(options.seed) {
  disk_.put_directory(job_directory);
  disk_.set_latency(std::chrono::microseconds(100), std::chrono::milliseconds(5));
  if (random_.one_in(3)) disk_.set_exchange_supported(false);
  world_size_ = 1 + static_cast<std::uint32_t>(random_.below(3));
  if (random_.one_in(2)) replicas_ = 3;
  // A lost node then leaves gaps in the memory of the others, where no law is about second copies.
  if (options_.is_stored && (options_.seed % 3 == 2 || options_.seed % 6 == 3)) replicas_ = 1;
  mem_interval_.steps = 1;
  if (random_.one_in(3)) {
    mem_interval_ = Interval{0, std::chrono::milliseconds(100 + random_.below(900))};
  }
  skip_one_in_ = random_.one_in(2) ? 5 + random_.below(10) : 0;
  may_ask_older_ = random_.one_in(2);
  may_rename_ = random_.one_in(3);
  // Bytes that flip now and then, and no other trouble on the way: what is damaged must be noticed,
  // since nothing else is a reason to lose it.
  is_noisy_ = random_.one_in(3);
  if (is_noisy_) network_.set_options(noise());
  flips_memory_ = !is_noisy_ && random_.one_in(3);
  // Where memory alone has the steps, it loses what no law could demand.
  if (options_.is_elastic) options_.trainers_retract = false;
}

World::~World() {
  while (!machines_.empty()) kill_machine(machines_.begin()->first);
}

Time World::now() const {
  return now_;
}

// --- time ---

bool World::poll_all() {
  std::vector<Machine*> order;
  for (auto& [name, machine] : machines_) {
    if (machine->stands_still_until <= now_) order.push_back(machine.get());
  }
  for (std::size_t left = order.size(); left > 1; --left) {
    std::swap(order[left - 1], order[random_.below(left)]);
  }
  bool has_run = false;
  for (Machine* machine : order) {
    machine->context->restart();
    has_run = machine->context->poll() > 0 || has_run;
  }
  return has_run;
}

// Runs what is ready, or jumps to the next event before `limit`.
void World::step_time(Time limit) {
  if (poll_all()) return;
  Time next = limit;
  for (auto& [name, machine] : machines_) {
    const bool stands_still = machine->stands_still_until > now_;
    const Time event = machine->clock.next_deadline().value_or(limit);
    next = std::min(next, stands_still ? machine->stands_still_until : event);
  }
  now_ = next;
  for (auto& [name, machine] : machines_) {
    if (machine->stands_still_until <= now_) machine->go_on(now_);
  }
}

void World::advance(Duration duration) {
  const Time end = now_ + duration;
  while (now_ < end) {
    step_time(end);
    pace_trainers();
    supervise();
  }
}

// --- the cluster ---

std::vector<Node> World::node_list() const {
  std::vector<Node> nodes;
  for (const std::string& name : members_) nodes.push_back({names_.at(name), "", name + ":1"});
  return nodes;
}

// Launchers may number the hosts that they are given: a daemon is called otherwise in each launch.
void World::name_members() {
  std::vector<std::string> names = members_;
  const bool are_swapped = may_rename_ && random_.one_in(3);
  const bool are_new = may_rename_ && random_.one_in(3);
  if (are_swapped) std::rotate(names.begin(), names.begin() + 1, names.end());
  names_.clear();
  for (std::size_t index = 0; index < members_.size(); ++index)
    names_[members_[index]] = are_new ? fmt::format("{}-{}", names[index], group_) : names[index];
}

std::string World::status_of(const std::string& machine) const {
  const auto found = machines_.find(machine);
  return found == machines_.end() ? std::string() : found->second->engine->status_json();
}

std::vector<std::string> World::names_of_machines() const {
  std::vector<std::string> names;
  for (const auto& [name, machine] : machines_) names.push_back(name);
  return names;
}

void World::start_machine(const std::string& name) {
  machines_[name] = std::make_unique<Machine>(*this, name, random_.next());
}

void World::memory_lost(const std::string& node) {
  if (std::find(members_.begin(), members_.end(), node) == members_.end()) return;
  memory_disturbed_in_ = group_;
  is_undisturbed_ = false;
  ++losses_since_commit_;
  disturbed_at_ = now_;
}

void World::kill_machine(std::string name) {
  log_info("kill machine {}", name);
  const auto found = machines_.find(name);
  if (found == machines_.end()) return;
  memory_lost(name);
  if (options_.is_elastic) abandoned_.clear();  // Perhaps it alone knew.
  network_.kill(name);
  // The context goes first: what is suspended dies where it stands.
  std::unique_ptr<Machine> machine = std::move(found->second);
  machines_.erase(found);
  machine->context.reset();
  for (auto& trainer : trainers_) {
    if (trainer && trainer->machine() == name) trainer->lose_machine();
  }
  std::erase_if(zombies_, [&](const auto& zombie) { return zombie.first == name; });
}

void World::start_trainer(Machine& machine, std::uint32_t rank, TrainerPlan plan) {
  auto& trainer = trainers_[rank];
  trainer = std::make_shared<SimTrainer>(plan, machine.engine, machine.clock, *this);
  run_detached(machine.context->get_executor(), run_held(trainer));
}

// Its memory is lost. Trainers that have begun go on under the new one, as the library does.
void World::restart_daemon(const std::string& name) {
  log_info("restart the daemon of {}", name);
  std::map<std::uint32_t, TrainerPlan> plans;
  for (const auto& trainer : trainers_) {
    if (trainer && trainer->machine() == name && trainer->is_training())
      plans.emplace(trainer->rank(), trainer->plan_to_train_on());
  }
  kill_machine(name);
  start_machine(name);
  Machine& machine = *machines_.at(name);
  for (auto& [rank, plan] : plans) {
    start_trainer(machine, rank, plan);
  }
}

// State of the job that no node of the list knows is lost; without storage nothing brings it back.
void World::keep_one_member(std::vector<std::string>& nodes) {
  const auto is_member = [&](const std::string& name) {
    return std::ranges::find(members_, name) != members_.end();
  };
  if (std::ranges::any_of(nodes, is_member)) return;
  for (const std::string& member : members_) {
    if (!machines_.contains(member)) continue;
    nodes.back() = member;
    return;
  }
}

// Every node of the list has a rank.
void World::draw_world_size() {
  if (!options_.is_elastic || keeps_world_size_) return;
  world_size_ = 1 + static_cast<std::uint32_t>(random_.below(5));
  if (takes_all_nodes_) world_size_ = nodes_max;
  if (keeps_members_)
    world_size_ = std::max(world_size_, static_cast<std::uint32_t>(members_.size()));
}

void World::launch() {
  draw_world_size();
  ++group_;
  ++outcome_.launches;
  relaunch_at_.reset();
  std::vector<std::string> alive = names_of_machines();
  while (alive.size() < std::min(world_size_, nodes_max)) {
    alive.push_back(fmt::format("n{}", next_name_++));
    start_machine(alive.back());
  }
  // Ranks may come back permuted, on other hosts.
  for (std::size_t left = alive.size(); left > 1; --left) {
    std::swap(alive[left - 1], alive[random_.below(left)]);
  }
  // Every node of the list has a rank: that is how its daemon learns of the list.
  const std::uint64_t most = std::min<std::uint64_t>(world_size_, alive.size());
  alive.resize(takes_all_nodes_ ? most : 1 + random_.below(most));
  if (keeps_members_) alive = members_;
  if (options_.is_elastic) keep_one_member(alive);
  for (const std::string& member : std::vector<std::string>(members_)) {
    // A node that is left out of the list serves nobody: as good as lost.
    const bool is_left_out = std::find(alive.begin(), alive.end(), member) == alive.end();
    if (is_left_out && machines_.contains(member)) memory_lost(member);
  }
  members_ = alive;
  name_members();
  wanted_.reset();
  if (may_ask_older_ && committed_ && random_.one_in(4) && number(committed_->step) > 2) {
    wanted_ = Step{number(committed_->step) - random_.below(2)};
  }
  const std::vector<Step> looked_at = steps_to_look_at();
  log_info("launch {}: nodes {} wanted {}", group_, fmt::join(names_, ","),
           wanted_ ? number(*wanted_) : 0);
  trainers_.assign(world_size_, nullptr);
  for (std::uint32_t rank = 0; rank < world_size_; ++rank) {
    Machine& machine = *machines_.at(alive[rank % alive.size()]);
    TrainerPlan plan;
    plan.request.job = "sim";
    if (has_storage()) plan.request.dir = job_directory;
    plan.has_copy = options_.has_copies;
    plan.has_part = options_.is_elastic && !options_.has_copies;
    plan.request.skip_unchanged = options_.is_frozen;
    plan.is_frozen = options_.is_frozen && !plan.has_copy && !plan.has_part;
    if (plan.has_copy) plan.tensor_bytes = 40'000;  // So that it is worth to divide it.
    plan.request.rank = rank;
    plan.request.world_size = world_size_;
    plan.request.nodes = node_list();
    plan.request.node = names_.at(machine.name);
    plan.machine = machine.name;
    plan.request.incarnation = group_;
    plan.request.save_mem_interval = mem_interval_;
    plan.request.replicas = replicas_;
    if (has_storage()) plan.request.save_storage_interval.steps = options_.is_stored ? 2 : 4;
    plan.request.max_ckpt_num = checkpoints_kept;
    plan.request.secret = "0123456789abcdef0123456789abcdef";
    plan.group = group_;
    plan.seed = random_.next();
    plan.looked_at = looked_at;
    plan.wanted = wanted_;
    plan.skip_one_in = skip_one_in_;
    // A flip before the daemon has hashed the byte looks like a captured value.
    if (flips_memory_) plan.lets_daemon_hash_one_in = std::numeric_limits<std::uint64_t>::max();
    plan.retracts_one_in = options_.trainers_retract && has_faults_ ? 20 : 0;
    start_trainer(machine, rank, plan);
  }
}

// Some that storage has, in any order. Nothing is lost by asking for them.
std::vector<Step> World::steps_to_look_at() {
  std::vector<Step> steps;
  if (!random_.one_in(3)) return steps;
  for (const Step step : published_) {
    const std::size_t place = random_.below(steps.size() + 1);
    steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(place), step);
  }
  return steps;
}

// Kills all ranks, as a launcher does when one has died. Some linger as zombies before their death
// is known.
void World::end_launch() {
  for (auto& trainer : trainers_) {
    if (!trainer) continue;
    outcome_.captures += trainer->captures();
    trainer->kill();
    const auto machine = machines_.find(trainer->machine());
    if (machine == machines_.end() || !trainer->session()) continue;
    if (random_.one_in(4)) {
      zombies_.emplace_back(trainer->machine(), trainer);
    } else {
      machine->second->engine->detach(*trainer->session());
    }
  }
  trainers_.clear();
}

void World::supervise() {
  if (holds_launches_) return;
  const bool is_broken = std::any_of(trainers_.begin(), trainers_.end(), [](const auto& trainer) {
    return trainer && (trainer->is_dead() || trainer->has_failed());
  });
  if (is_broken && !relaunch_at_) {
    end_launch();
    relaunch_at_ = now_ + milliseconds(random_.below(3000));
  }
  // A zombie that is proven gone gives its Slots free; before that it may wake.
  for (std::size_t index = 0; index < zombies_.size();) {
    auto& [name, zombie] = zombies_[index];
    const bool has_successor = std::any_of(
        trainers_.begin(), trainers_.end(), [&, node = name, rank = zombie->rank()](const auto& t) {
          return t && t->machine() == node && t->rank() == rank && t->session();
        });
    if (has_successor && random_.one_in(2)) zombie->wake_as_zombie();
    if (has_successor || random_.one_in(2000)) {
      machines_.at(name)->engine->detach(*zombie->session());
      zombies_.erase(zombies_.begin() + static_cast<std::ptrdiff_t>(index));
    } else {
      ++index;
    }
  }
  if (std::exchange(drops_memory_outside_, false)) {
    for (const auto& name : names_of_machines()) {
      if (names_.contains(name)) continue;
      kill_machine(name);
      start_machine(name);
    }
  }
  if (relaunch_at_ && now_ >= *relaunch_at_) launch();
}

// Synchronous training: nobody begins step k + 2 before everybody has done step k + 1.
void World::pace_trainers() {
  if (is_training_paused_) return;
  Step slowest{std::numeric_limits<std::uint64_t>::max()};
  for (const auto& trainer : trainers_) {
    if (!trainer || !trainer->is_training()) return;
    slowest = std::min(slowest, trainer->done());
  }
  for (const auto& trainer : trainers_) trainer->allow(Step{number(slowest) + 1});
}

// --- faults ---

void World::kill_random_trainer() {
  if (trainers_.empty()) return;
  trainers_[random_.below(trainers_.size())]->kill();
}

void World::kill_random_machine() {
  if (machines_.empty()) return;
  auto victim = machines_.begin();
  std::advance(victim, static_cast<std::ptrdiff_t>(random_.below(machines_.size())));
  const std::string name = victim->first;
  if (random_.one_in(4)) return restart_daemon(name);
  kill_machine(name);
  // Half of the time the same host comes back with an empty memory.
  if (random_.one_in(2)) start_machine(name);
}

// A daemon and its trainers are stopped, or their virtual machine is, for shorter or longer than
// makes a node lost.
void World::pause_random_machine() {
  if (machines_.empty()) return;
  auto victim = machines_.begin();
  std::advance(victim, static_cast<std::ptrdiff_t>(random_.below(machines_.size())));
  victim->second->stands_still_until = now_ + milliseconds(random_.below(8000));
  log_info("{} stands still until {} ms", victim->first,
           victim->second->stands_still_until.time_since_epoch() / std::chrono::milliseconds(1));
  disturbed_at_ = victim->second->stands_still_until;
}

void World::disturb_disk() {
  test::MemoryDisk::Fault fault;
  fault.error = random_.one_in(2) ? 5 : 28;  // EIO, ENOSPC.
  fault.is_partial = random_.one_in(2);
  disk_.fail_at(random_.below(40), fault);
}

bool World::holds(const std::string& machine, std::uint32_t rank, format::StepId at) const {
  const auto status = nlohmann::json::parse(machines_.at(machine)->engine->status_json());
  for (const auto& job : status["jobs"]) {
    for (const auto& slot : job["slots"]) {
      const bool is_it = slot["state"] == "sealed" && slot["rank"] == rank &&
                         slot["timeline"] == at.timeline && slot["step"] == number(at.step);
      if (is_it) return true;
    }
  }
  return false;
}

void World::flip_memory_of(const std::string& machine, std::uint64_t flips) {
  for (; flips > 0; --flips) machines_.at(machine)->memory.flip_a_bit(random_);
  flipped_at_ = now_;
  may_be_damaged_ = true;
  memory_lost(machine);
}

// A copy that is damaged is as good as lost, whichever it is.
void World::flip_memory() {
  if (machines_.empty()) return;
  auto victim = machines_.begin();
  std::advance(victim, static_cast<std::ptrdiff_t>(random_.below(machines_.size())));
  log_info("flips in the memory of {}", victim->first);
  flip_memory_of(victim->first, 1 + random_.below(8));
}

void World::inject_fault() {
  ++outcome_.kills;
  log_info("fault at {} ms", now_.time_since_epoch() / std::chrono::milliseconds(1));
  if (flips_memory_ && random_.one_in(2)) flip_memory();
  const std::uint64_t last_of_nodes = 3;
  if (options_.has_pauses && random_.one_in(2)) return pause_random_machine();
  switch (random_.below(is_noisy_ || options_.has_pauses ? last_of_nodes + 1 : 8)) {
    case 0:
    case 1:
      kill_random_trainer();
      break;
    case 2:
    case 3:
      kill_random_machine();
      break;
    case 4:
      disturb_disk();
      break;
    case 5:
      disk_.stall_until(now_ + milliseconds(random_.below(random_.one_in(4) ? 30'000 : 4000)));
      break;
    case 6: {
      test::SimNetworkOptions network;
      network.delay_max = milliseconds(1 + random_.below(50));
      network.reset_one_in = random_.one_in(2) ? 200 : 0;
      network.flip_one_in = random_.one_in(2) ? 300 : 0;
      network_.set_options(network);
      disturbed_at_ = now_;
      is_undisturbed_ = false;
      are_links_cut_ = true;
      break;
    }
    default: {
      if (members_.size() < 2) break;
      const auto& left = members_[random_.below(members_.size())];
      const auto& right = members_[random_.below(members_.size())];
      if (left == right) break;
      random_.one_in(2) ? network_.partition(left, right) : network_.partition_one_way(left, right);
      disturbed_at_ = now_;
      is_undisturbed_ = false;
      are_links_cut_ = true;
    }
  }
  if (!is_noisy_ && random_.one_in(3)) {
    network_.heal_all();  // Delays and resets stay.
    disturbed_at_ = now_;
  }
}

void World::hang_storage_of(const std::string& machine, Time end) {
  machines_.at(machine)->files.stall_until(end);
}

void World::calm() {
  has_faults_ = false;
  skip_one_in_ = 0;
  network_.heal_all();
  network_.set_options({});
  are_links_cut_ = false;
  disk_.clear_faults();
  disk_.stall_until(now_);
}

// --- checks ---

void World::violated(const std::string& what) {
  outcome_.violations.push_back(fmt::format("seed {}: {}", options_.seed, what));
  if (!options_.is_verbose) return;
  log_error("{}", outcome_.violations.back());
  for (const auto& [name, machine] : machines_) {
    log_error("{}: {}", name, machine->engine->status_json());
  }
}

void World::began(std::uint32_t rank, std::uint64_t group, const control::Begun& begun) {
  check_newest_seen(begun);
  if (group != group_) return;  // A launch that is over.
  outcome_.mixed_restores += trainers_[rank]->is_mixed();
  const auto [entry, is_first] = groups_.try_emplace(group, Group{begun.restored, begun.timeline});
  if (!is_first) {
    if (entry->second.restored != begun.restored || entry->second.timeline != begun.timeline) {
      violated(fmt::format("I3: ranks of launch {} began from different steps", group));
    }
    return;
  }
  outcome_.restores += begun.restored.has_value();
  const bool is_safe =
      committed_ && was_whole_at_commit_ &&
      losses_since_commit_ <= std::min<std::size_t>(members_at_commit_, replicas_) - 1;
  const bool asked_for_less =
      begun.restored && committed_ && begun.restored->step < committed_->step;
  const bool was_wanted = may_ask_older_ && asked_for_less;
  if (is_safe && !was_wanted && (!begun.restored || *begun.restored < *committed_)) {
    violated(fmt::format("I1: committed timeline {} step {}, restored {}", committed_->timeline,
                         number(committed_->step),
                         begun.restored
                             ? fmt::format("timeline {} step {}", begun.restored->timeline,
                                           number(begun.restored->step))
                             : "nothing"));
  }
  // Memory serves alone while storage hangs. Only storage can say what is durable, and what a
  // restore abandoned that these nodes missed.
  const bool is_blind = begun.reason.find("storage did not answer") != std::string::npos;
  const bool is_by_path = options_.is_stored && trainers_[rank]->was_unsupported();
  check_durable(begun, is_blind || is_by_path);
  for (const format::StepId& at : abandoned_) {
    if (begun.restored && at == *begun.restored && !is_blind) {
      violated(fmt::format("I3: restored the abandoned timeline {} step {}", at.timeline,
                           number(at.step)));
    }
  }
  // A step that was restored once stays until there is a newer one, whoever restored it.
  const bool is_suspect = committed_ && times_begun_[*committed_] >= 3;
  const bool is_kept = begun.restored && committed_ && *begun.restored >= *committed_;
  if (is_undisturbed_ && committed_ && !is_suspect && !was_wanted && !is_kept)
    violated(fmt::format("I1: launch {} lost timeline {} step {}, and nothing had happened", group,
                         committed_->timeline, number(committed_->step)));
  if (begun.restored) ++times_begun_[*begun.restored];
  drops_memory_outside_ = !has_storage() && !begun.restored;
  // Damage that this restore did not have to read is found by a later one.
  is_undisturbed_ = options_.is_elastic && !is_noisy_ && !are_links_cut_ && !may_be_damaged_;
  // Nodes that were away when a step was committed, and are alone now, cannot abandon it.
  const bool have_heard = std::ranges::any_of(
      members_, [this](const std::string& name) { return heard_of_commit_.contains(name); });
  if (begun.restored && committed_ && *begun.restored < *committed_ &&
      (have_heard || !options_.is_elastic)) {
    abandoned_.insert(*committed_);
  }
  committed_ = begun.restored;
  heard_of_commit_ = {members_.begin(), members_.end()};
  was_whole_at_commit_ = false;
}

void World::reached(std::uint32_t, format::StepId at, Level level, bool is_base) {
  // Storage may have had the base.
  if (level == Level::committed && given_up_.contains(at) && !is_base && !are_links_cut_)
    violated(fmt::format("I1: timeline {} step {} was given up, and then committed", at.timeline,
                         number(at.step)));
  if (level == Level::committed && (!committed_ || at > *committed_)) {
    committed_ = at;
    ++outcome_.commits;
    losses_since_commit_ = 0;
    may_be_damaged_ = may_be_damaged_ && now_ - flipped_at_ <= settling_time;
    members_at_commit_ = members_.size();
    heard_of_commit_ = {members_.begin(), members_.end()};
    const bool hear_one_another = !options_.is_elastic || !are_links_cut_;
    was_whole_at_commit_ = now_ - disturbed_at_ > settling_time && hear_one_another;
  }
  if (level == Level::durable && (!durable_ || at > *durable_)) {
    durable_ = at;
    durable_is_demanded_ = true;
    read_faults_at_durable_ = disk_.read_faults();
    ++outcome_.publications;
    published_.push_back(at.step);
    if (published_.size() > checkpoints_kept) published_.erase(published_.begin());
    check_storage();
  }
}

// I4: the first restore after a promise reaches what was called durable, whatever else was lost. A
// later one may go back behind it: without progress the step is suspect. A file that could not be
// read once is passed by, too.
void World::check_durable(const control::Begun& begun, bool is_blind) {
  if (is_blind) {
    // No later restore can have the steps that it abandons unknowingly.
    const bool abandons = durable_ && !(begun.restored && *begun.restored >= *durable_);
    if (abandons) durable_is_demanded_ = false;
    return;
  }
  const bool is_demanded = std::exchange(durable_is_demanded_, false);
  if (!durable_ || (begun.restored && *begun.restored >= *durable_)) return;
  const bool is_older = begun.restored && begun.restored->step < durable_->step;
  const bool is_the_wanted = begun.restored && begun.restored->step == wanted_;
  const bool was_wanted = may_ask_older_ && (is_older || is_the_wanted);
  const bool is_unread = disk_.read_faults() > read_faults_at_durable_;
  if (is_demanded && !was_wanted && !is_unread) {
    violated(fmt::format(
        "I4: durable timeline {} step {}, restored {}", durable_->timeline, number(durable_->step),
        begun.restored ? fmt::format("timeline {} step {}", begun.restored->timeline,
                                     number(begun.restored->step))
                       : "nothing"));
  }
}

// I4: a step that was called durable, or a newer one, is there for a reader now.
void World::check_storage() {
  if (!durable_) return;
  disk_.clear_faults();  // They are for the cluster, not for who looks on.
  asio::io_context context;
  test::FakeClock clock(context);
  test::MemoryFileSystem files(disk_);
  storage::CatalogOptions options;
  options.make_durable = false;
  auto catalog = test::run_task(
      context, storage::read_catalog(storage::Site(files, clock, job_directory), options));
  if (!catalog) {
    if (!has_faults_) violated("I4: storage cannot be read in calm: " + catalog.error().message());
    return;
  }
  const bool is_there = std::any_of(
      catalog->checkpoints.begin(), catalog->checkpoints.end(),
      [&](const storage::Checkpoint& checkpoint) { return checkpoint.at >= *durable_; });
  if (!is_there) {
    violated(fmt::format("I4: durable timeline {} step {} is gone", durable_->timeline,
                         number(durable_->step)));
  }
}

void World::check_converges() {
  const std::uint64_t commits = outcome_.commits;
  const std::uint64_t publications = outcome_.publications;
  const std::uint64_t expected = has_storage() ? 1 : 0;
  const Time end = now_ + calm_phase_max;
  while (now_ < end &&
         (outcome_.commits < commits + 8 || outcome_.publications < publications + expected)) {
    advance(milliseconds(200));
  }
  if (outcome_.commits < commits + 8) violated("liveness: nothing is committed in calm");
  if (outcome_.publications < publications + expected)
    violated("liveness: nothing is published in calm");
}

Outcome World::run() {
  launch();
  const Time end = now_ + fault_phase;
  while (now_ < end) {
    advance(milliseconds(200 + random_.below(2500)));
    inject_fault();
  }
  calm();
  check_converges();
  // One more death in calm: nothing may be lost now.
  advance(settling_time);
  random_.one_in(2) ? kill_random_trainer() : kill_random_machine();
  check_converges();
  count_unchanged();
  check_storage();
  if (options_.seed % 3 == 0) disasters();  // Each takes longer than all before.
  if (options_.seed % 3 == 1) {
    check_redundancy();
    check_healing();
    check_close();
  }
  end_launch();
  return outcome_;
}

}  // namespace ckpt::sim
