// Disasters in calm: one thing goes wrong for good, all else is well, and the job must go on.
#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "sim/world.hpp"
#include "storage/member_reader.hpp"
#include "storage/run_catalog.hpp"
#include "support/run_task.hpp"

namespace ckpt::sim {

namespace {

constexpr Duration hang = std::chrono::seconds(60);  // Longer than any patience.
constexpr Duration goes_on_max = std::chrono::seconds(40);
constexpr Duration two_saves_max = std::chrono::seconds(20);

}  // namespace

std::vector<storage::Checkpoint> World::good_checkpoints() {
  asio::io_context context;
  test::FakeClock clock(context);
  test::MemoryFileSystem files(disk_);
  auto read = test::run_task(context,
                             storage::read_run_catalog(storage::Site(files, clock, job_directory)));
  if (!read) return {};
  std::vector<storage::Checkpoint> good = std::move(read->catalog.checkpoints);
  std::erase_if(good,
                [](const storage::Checkpoint& checkpoint) { return checkpoint.is_abandoned; });
  return good;
}

void World::disasters() {
  if (options_.is_elastic) flip_between_lives();
  // Those of storage take long: an elastic world has them more rarely.
  const bool is_their_turn = !options_.is_elastic || options_.seed % 15 == 0;
  if (!has_storage() || !is_their_turn) return;
  hang_storage();
  if (replicas_ > 1) hang_writer();  // Without a copy nobody else can write its part.
  lose_coordinator();
  rot_storage();
}

// Bits flip in all that the memory of a node has, and before the node finds that, another number of
// ranks begins. Damaged Chunks come from the other copies, or from storage.
void World::flip_between_lives() {
  advance(settling_time);
  log_info("all memory of a node is damaged between two lives");
  may_ask_older_ = false;
  keeps_members_ = true;
  is_training_paused_ = true;
  advance(std::chrono::seconds(2));
  // Storage may have a step that no memory has, as other ranks saved it.
  const bool is_elsewhere = has_all_copies() || (durable_ && durable_ >= committed_);
  const bool is_safe = committed_ && members_.size() > 1 && is_elsewhere;
  const std::optional<format::StepId> before = committed_;
  const std::uint64_t launches = outcome_.launches;
  flip_memory_of(members_[random_.below(members_.size())], flips_to_hit_all);
  kill_random_trainer();
  const auto has_begun = [&] { return outcome_.launches > launches && groups_.contains(group_); };
  for (const Time end = now_ + goes_on_max; now_ < end && !has_begun();)
    advance(std::chrono::milliseconds(200));
  const std::optional<format::StepId> after =
      has_begun() ? groups_.at(group_).restored : std::nullopt;
  if (is_safe && !(after >= before))
    violated(fmt::format("I1: flips in one memory lost timeline {} step {}, which others had",
                         before->timeline, number(before->step)));
  keeps_members_ = is_training_paused_ = false;
  check_converges();
}

// A trainer dies while storage hangs: all begin again from what the memory of their nodes has.
void World::hang_storage() {
  advance(settling_time);
  log_info("storage hangs");
  may_ask_older_ = false;
  keeps_members_ = true;
  const Time hangs_until = now_ + hang;
  disk_.stall_until(hangs_until);
  const std::uint64_t launches = outcome_.launches;
  const std::uint64_t restores = outcome_.restores;
  const std::uint64_t commits = outcome_.commits;
  kill_random_trainer();
  const Time end = now_ + goes_on_max;
  const auto goes_on = [&] {
    return outcome_.launches > launches && outcome_.restores > restores &&
           outcome_.commits >= commits + 4;
  };
  while (now_ < end && !goes_on()) advance(std::chrono::milliseconds(200));
  if (!goes_on()) violated("liveness: hung storage keeps a job from what its memory has");
  if (now_ < hangs_until) advance(hangs_until - now_);
  keeps_members_ = false;
  check_converges();
}

// The storage of one node hangs, in mid-flush or not, and the node is well otherwise: others write
// its part. When it answers again, what hung goes on, and harms nothing.
void World::hang_writer() {
  advance(settling_time);
  if (trainers_.size() < 2 || members_.size() < 2) return;
  const std::string& coordinator = trainers_[0]->machine();
  const std::string& writer = trainers_[1 + random_.below(trainers_.size() - 1)]->machine();
  if (writer == coordinator || good_checkpoints().empty()) return;
  advance(std::chrono::milliseconds(random_.below(1000)));
  log_info("the storage of {} hangs", writer);
  const Time hangs_until = now_ + hang;
  hang_storage_of(writer, hangs_until);
  const format::StepId before = good_checkpoints().back().at;
  const Time end = now_ + goes_on_max;
  // One flush may have had its part already, the next ones not. Each fourth step is stored.
  const auto goes_on = [&] {
    return number(good_checkpoints().back().at.step) >= number(before.step) + 8;
  };
  while (now_ < end && !goes_on()) advance(std::chrono::milliseconds(200));
  if (!goes_on()) violated("liveness: a writer that hangs keeps a job from its storage");
  if (now_ < hangs_until) advance(hangs_until - now_);
  check_converges();
  check_checkpoints();
}

// Every published step is as its manifest says.
void World::check_checkpoints() {
  asio::io_context context;
  test::MemoryFileSystem files(disk_);
  for (const storage::Checkpoint& checkpoint : good_checkpoints()) {
    const std::string path = job_directory + "/" + checkpoint.name;
    const auto report = test::run_task(context, storage::verify_checkpoint(files, path));
    if (!report || !report->is_good()) violated("I4: what was published is damaged: " + path);
  }
}

// Three copies on three nodes: the coordinator dies when the second node has its copy of a step and
// the third has not. The second takes over, and may call no step committed that the third lacks.
void World::lose_coordinator() {
  if ((world_size_ < 3 && !options_.is_elastic) || replicas_ < 3) return;
  may_ask_older_ = false;
  takes_all_nodes_ = true;
  kill_random_trainer();
  check_converges();
  advance(settling_time);
  takes_all_nodes_ = false;
  if (trainers_.size() != 3 || members_.size() != 3) return;
  std::vector<std::string> order;  // As the list of nodes has them: by rank.
  for (const auto& trainer : trainers_) order.push_back(trainer->machine());
  format::StepId at;
  const auto is_the_moment = [&] {
    at = format::StepId{groups_[group_].timeline, trainers_[0]->done()};
    return holds(order[1], 0, at) && !holds(order[2], 0, at);
  };
  const Time end = now_ + std::chrono::seconds(5);
  while (now_ < end && !is_the_moment()) {
    step_time(end);
    pace_trainers();
  }
  log_info("the coordinator dies");
  holds_launches_ = true;
  kill_machine(order[0]);
  advance(settling_time);
  for (std::uint32_t rank = 0; committed_ && rank < 3; ++rank) {
    if (!holds(order[1], rank, *committed_) || !holds(order[2], rank, *committed_))
      violated("I1: a successor committed a step that the third node lacks");
  }
  holds_launches_ = false;
  check_converges();
}

// All memory is lost, and a bit of the newest checkpoint is wrong, in a file or a part of a rank.
// Daemons restore from storage alone only what as many ranks saved.
void World::rot_storage() {
  const auto are_of_now = [this] {
    const std::vector<storage::Checkpoint> good = good_checkpoints();
    return good.size() >= 2 && good.back().world_size == world_size_ &&
           good[good.size() - 2].world_size == world_size_;
  };
  for (const Time end = now_ + two_saves_max; options_.is_elastic && now_ < end && !are_of_now();)
    advance(std::chrono::milliseconds(200));
  if (!are_of_now()) return;
  const std::vector<storage::Checkpoint> good = good_checkpoints();
  std::vector<std::string> members;
  for (const std::string& path : disk_.tree()) {
    const bool is_of_newest = path.starts_with(job_directory + "/" + good.back().name + "/");
    const bool is_needed = path.ends_with(".safetensors") || path.ends_with(".part");
    if (is_of_newest && is_needed) members.push_back(path);
  }
  if (members.empty()) return;
  const std::string& rotten = members[random_.below(members.size())];
  log_info("all memory is lost, and {} rots", rotten);
  disk_.flip(rotten, random_.below(disk_.content(rotten).size()),
             static_cast<unsigned>(random_.below(8)));
  may_ask_older_ = false;
  keeps_world_size_ = true;
  while (!machines_.empty()) kill_machine(machines_.begin()->first);
  durable_ = good[good.size() - 2].at;
  durable_is_demanded_ = true;
  const std::uint64_t restores = outcome_.restores;
  check_converges();
  keeps_world_size_ = false;
  if (outcome_.restores == restores) violated("liveness: nothing was restored beside rot");
}

}  // namespace ckpt::sim
