#include "node/job.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>

#include "agree/timelines.hpp"
#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "node/job_storage.hpp"
#include "node/peers.hpp"
#include "node/replication.hpp"

namespace ckpt::node {

namespace {

agree::CoordinatorOptions coordinator_options(const EngineContext& context,
                                              const AttachRequest& request, std::uint64_t boot) {
  agree::CoordinatorOptions options;
  options.node = request.node;
  options.boot = boot;
  options.restores_without_progress_max = context.options.restores_without_progress_max;
  options.flush_stalled_after = context.options.flush_stalled_after;
  options.manifest_bytes_max = context.options.manifest_bytes_max;
  return options;
}

// A job that was dropped and is opened again has nothing of what it held, and counts its reports
// and decrees from the beginning, as after a new start of the daemon: peers must see the
// difference.
std::uint64_t next_boot(EngineContext& context) {
  return context.options.boot + (context.jobs_opened++ << 32);
}

}  // namespace

std::shared_ptr<Job> Job::make(SharedContext context, const AttachRequest& first) {
  auto job = std::make_shared<Job>(std::move(context), first);
  // They keep plain references to the job: it owns them.
  job->peers_ = std::make_unique<Peers>(*job);
  job->replication_ = std::make_unique<Replication>(*job);
  job->storage_ = std::make_unique<JobStorage>(*job);
  return job;
}

Job::Job(SharedContext context, const AttachRequest& first)
    : held_context_(std::move(context)),
      context_(*held_context_),
      boot_(next_boot(context_)),
      node_(first.node),
      directory_(first.dir),
      slots_(context_, first.job),
      giving_way_(context_.seams.clock, first.job),
      changed_(context_.seams.clock),
      stopped_(context_.seams.clock),
      idle_(context_.options.job_idle_limit),
      coordinator_(coordinator_options(context_, first, boot_)) {
  shape_.job = first.job;
  idle_.seen(context_.seams.clock.now());
}

Job::~Job() = default;

Task<void> Job::open(bool is_first) {
  const std::shared_ptr<Job> self = shared_from_this();
  const StopGate::Pass pass = gate_.enter();
  if (directory_.empty()) {
    // Without a directory nothing can carry a UUID: the job's name and the user are the run.
    const std::string identity = fmt::format("{}\n{}", shape_.job, ::getuid());
    shape_.run = digest_of(std::as_bytes(std::span(identity)));
  } else {
    CKPT_CO_TRY(shape_.run, co_await storage_->open(shape_.job, is_first));
    history_ = agree::merge(history_, storage_->stored_history());
    restore_counts_ = agree::merge(restore_counts_, storage_->stored_counts());
    counts_announced_ = restore_counts_;
  }
  opened_at_ = context_.seams.clock.now();
  is_opened_ = true;
  asio::co_spawn(context_.executor, heartbeat(), asio::detached);
  log_info("job={} node={} run={} dir={} opened", shape_.job, node_, to_hex(shape_.run),
           directory_.empty() ? "none" : directory_);
  co_return Status{};
}

asio::awaitable<void> Job::heartbeat() {
  const std::shared_ptr<Job> self = shared_from_this();
  const StopGate::Pass pass = gate_.enter();
  Clock& clock = context_.seams.clock;
  while (!gate_.is_stopping()) {
    touch();
    // Not a sleep: whoever stops the job does not wait for its next beat.
    auto waited = co_await stopped_.wait_until(clock.after(context_.options.heartbeat_interval));
    if (!waited) co_return;
  }
}

void Job::touch() {
  if (is_update_posted_ || gate_.is_stopping()) return;
  is_update_posted_ = true;
  asio::post(context_.executor, [self = shared_from_this()] {
    self->is_update_posted_ = false;
    if (!self->gate_.is_stopping() && self->is_opened_) self->update();
  });
}

void Job::check_invariants() const {
  slots_.check_invariants();
  for (const auto& [number_of_rank, rank] : ranks_) {
    CKPT_ASSERT(rank.rank == number_of_rank);
    if (rank.session) {
      CKPT_ASSERT(!rank.session->is_fenced);
      rank.session->check_invariants();
    }
    for (const auto& older : rank.fenced) CKPT_ASSERT(older->is_fenced);
  }
}

void Job::update() {
  check_invariants();
  note_idle();
  for (auto& [number_of_rank, rank] : ranks_) {
    settle_closing(rank);
    prepare_slots(rank);
    grant_slots(rank);
    // After the Slots that it freed: who hears of a commit finds one.
    if (rank.session) tell_levels(*rank.session);
  }
  build_report();
  coordinate();
  if (decree_.start) {
    for (auto& [number_of_rank, rank] : ranks_) obey_start(rank, *decree_.start);
  }
  // A copy may have come after the decree that gave its step up, which is not sent again.
  retire_useless();
  build_report();  // What was obeyed shows at once.
  giving_way_.update(ranks_, is_flush_wanted_, replication_->targets().size());
  for (const auto& [number_of_rank, rank] : ranks_) tell_notice(rank);
  check_invariants();
  replication_->wake();
  peers_->wake();
  changed_.notify_all();
}

Task<void> Job::stop(Time deadline) {
  const std::shared_ptr<Job> self = shared_from_this();
  CKPT_POINT("stop.begin");
  gate_.stop();
  changed_.close();
  stopped_.close();
  peers_->stop();
  replication_->stop();
  storage_->stop();
  auto drained = co_await gate_.drained(context_.seams.clock, deadline);
  if (!drained) co_return fail(std::move(drained).error());
  co_return Status{};
}

}  // namespace ckpt::node
