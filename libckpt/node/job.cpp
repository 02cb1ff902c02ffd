#include "node/job.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>

#include "agree/timelines.hpp"
#include "base/assert.hpp"
#include "base/change_checked.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "storage/publish_order.hpp"

namespace ckpt::node {

namespace {

// A job that was dropped and is opened again has nothing of what it held, and counts its reports
// and decrees from the beginning, as after a new start of the daemon: peers must see the
// difference.
std::uint64_t next_boot(EngineContext& context) {
  return context.options.boot + (context.jobs_opened++ << 32);
}

JobFacts first_facts(EngineContext& context, const AttachRequest& request) {
  JobFacts facts{.context = context, .boot = next_boot(context)};
  facts.shape.job = request.job;
  facts.node = request.node;
  facts.dir = request.dir;
  // The engine has refused what cannot be read.
  const auto places = storage::parse_places(request.dir);
  CKPT_ASSERT(places.has_value());
  facts.directory = places->first;
  facts.second = places->second;
  return facts;
}

Status check_compression(const AttachRequest& request) {
  const auto context = [&] { return "attach to job " + request.job + ": compression"; };
  auto compression = storage::parse_compression(request.compression);
  if (!compression) return fail(std::move(compression).error().context(context()));
  if (!*compression) return {};
  Status available = storage::check_available(**compression);
  if (!available) return fail(std::move(available).error().context(context()));
  return {};
}

}  // namespace

Job::Job(SharedContext context, const AttachRequest& first)
    : held_context_(std::move(context)),
      facts_(first_facts(*held_context_, first)),
      changed_(facts_.clock()),
      stopped_(facts_.clock()),
      slots_(facts_.context, first.job),
      giving_way_(facts_.clock(), first.job),
      peers_(facts_, *this),
      replication_(facts_, *this, slots_, peers_, giving_way_),
      storage_(facts_, *this, slots_, giving_way_, peers_,
               [this](const format::Timelines& stored) { agreement_.learn(stored); }),
      look_(facts_, *this, storage_.places()),
      healing_(facts_, *this, slots_, peers_, replication_, storage_),
      old_world_(facts_, facts_.given_up, *this, ranks_, slots_, storage_),
      captures_(facts_, *this, ranks_, slots_, old_world_),
      sessions_(facts_, *this, ranks_, captures_, storage_, giving_way_),
      restores_(facts_, *this, ranks_, slots_, sessions_, replication_, storage_),
      agreement_(facts_, *this, ranks_, slots_, peers_, storage_),
      last_look_(facts_, facts_.last_look, *this, storage_),
      unsaved_(facts_, *this, ranks_, steps_to_compare()) {}

void Job::note_left(const LeftDirectory& left) {
  if (!facts_.directory.empty()) storage_.places().front().note_left(left);
}

Task<void> Job::open(bool is_first) {
  const WorkPass work = begin_work();
  peers_.open();
  if (facts_.directory.empty()) {
    // Without a directory nothing can carry a UUID: the job's name and the user are the run.
    const std::string identity = fmt::format("{}\n{}", facts_.shape.job, ::getuid());
    facts_.shape.run = digest_of(std::as_bytes(std::span(identity)));
  } else {
    CKPT_CO_TRY(facts_.shape.run, co_await storage_.open(facts_.shape.job, is_first));
  }
  agreement_.open();
  is_opened_ = true;
  facts_.context.spawn(heartbeat());
  healing_.open();
  log_info("job={} node={} run={} dir={} opened", facts_.shape.job, facts_.node,
           to_hex(facts_.shape.run), facts_.dir.empty() ? "none" : facts_.dir);
  co_return Status{};
}

asio::awaitable<void> Job::heartbeat() {
  const WorkPass work = begin_work();
  Clock& clock = facts_.clock();
  while (!gate_.is_stopping()) {
    touch();
    // Not a sleep: a stop of the job does not wait for its next beat.
    auto waited =
        co_await stopped_.wait_until(clock.after(facts_.context.options.heartbeat_interval));
    if (!waited) co_return;
  }
}

void Job::touch() {
  if (is_update_posted_ || gate_.is_stopping()) return;
  is_update_posted_ = true;
  asio::post(facts_.context.executor, [self = shared_from_this()] {
    self->is_update_posted_ = false;
    if (!self->gate_.is_stopping() && self->is_opened_) self->update();
  });
}

void Job::adopt_shape(const AttachRequest& request) {
  if (facts_.shape.world_size != request.world_size) old_world_.changed();
  facts_.shape.world_size = request.world_size;
  facts_.shape.replicas = request.replicas;
  facts_.shape.incarnation = request.incarnation;
  facts_.shape.has_storage = !request.dir.empty();
  facts_.shape.nodes = request.nodes;
  facts_.shape.save_mem_interval = request.save_mem_interval;
  facts_.shape.save_storage_interval = request.save_storage_interval;
  facts_.members = agree::members_digest(facts_.shape);
  facts_.node = request.node;
  facts_.secret = request.secret;
  agreement_.shape_changed();
  captures_.set_slot_count(std::max(request.own_slots, request.dir.empty()
                                                           ? arena::own_slots_min
                                                           : arena::own_slots_with_storage));
  storage_.set_retention({request.max_ckpt_num,
                          request.keep_every,
                          {request.keep_best, request.best_metric, request.best_is_greatest}});
  const auto compression = storage::parse_compression(request.compression);  // Checked by attach.
  storage_.set_compression(compression ? *compression : std::nullopt);
  giving_way_.set_rates(request.flush_rate, request.replica_rate);
  replication_.set_skip_unchanged(request.skip_unchanged);
  storage_.flush_memory().set_enabled(request.skip_unchanged);
  if (facts_.shape.nodes.size() > 1 && facts_.secret.empty()) {
    log_warning("job={} no secret: no peer copies, and no checkpoints of a job of {} nodes",
                facts_.shape.job, facts_.shape.nodes.size());
  }
}

Result<Attached> Job::attach(const AttachRequest& request, SessionEvents& events) {
  CKPT_CHECK(sessions_.check(request));
  CKPT_CHECK(check_compression(request));
  // Trainers of an older list may have their ranks on another node by now.
  const bool is_newer_list = request.incarnation > facts_.shape.incarnation;
  if (is_newer_list) sessions_.fence_all(request);
  // Nodes may have trained by a list without this one, and stored and removed steps.
  if (is_newer_list)
    for (StoredPlace& place : storage_.places()) place.forget_for_gone();
  const bool is_other_world = request.world_size != facts_.shape.world_size;
  if (facts_.ended_at || is_other_world) sessions_.forget_gone();
  adopt_shape(request);
  CKPT_POINT("reg.before");
  const Attached attached = sessions_.attach(request, events);
  facts_.ended_at.reset();
  peers_.members_changed();
  log_info("job={} rank={} session={:x} attached{}", facts_.shape.job, request.rank,
           static_cast<std::uint64_t>(attached.session),
           request.continuation ? " to go on after a restart of the daemon" : "");
  CKPT_POINT("reg.after");
  touch();
  return attached;
}

Status Job::call(SessionId id, control::Call call) {
  CKPT_TRY(const Caller by, ranks_.active(id, control::name_of(call), facts_.shape.job));
  const auto carry_out_here = [&](auto& it) -> Status {
    if constexpr (requires { captures_.carry_out(by, std::move(it)); })
      return captures_.carry_out(by, std::move(it));
    else if constexpr (requires { sessions_.carry_out(by, std::move(it)); })
      return sessions_.carry_out(by, std::move(it));
    else
      return carry_out(by, std::move(it));
  };
  return change_checked(by.session, [&] { return std::visit(carry_out_here, call); });
}

void Job::check_invariants() const {
  slots_.check_invariants();
  ranks_.check_invariants();
}

void Job::update() {
  check_invariants();
  note_idle();
  captures_.set_flush_idle(has_idle_flush(facts_.clock().now()));
  serve_trainers();
  build_report();
  if (agreement_.decide()) obey();
  last_look_.update(is_flush_wanted_ || is_expired_ || agreement_.is_final());
  restores_.obey_start();
  look_for_missing_pieces();
  unsaved_.update(peers_.is_coordinator());
  // A copy may have come after the decree that gave its step up, which is not sent again.
  captures_.retire_useless();
  give_way();
  build_report();  // The orders just obeyed show at once.
  giving_way_.update(ranks_, is_flush_wanted_, replication_.targets().size());
  send_notices();
  check_invariants();
  replication_.wake();
  healing_.wake();
  peers_.wake(agreement_.report());
  changed_.notify_all();
}

void Job::serve_trainers() {
  for (auto& [number_of_rank, rank] : ranks_) {
    sessions_.settle_closing(rank, [this] { return degraded(); });
    captures_.end_rests(rank);
    captures_.prepare_slots(rank);
    captures_.grant_slots(rank);
    // After the Slots that it freed: a trainer that hears of a commit finds one.
    if (rank.session) sessions_.send_levels(*rank.session);
  }
}

void Job::build_report() {
  agreement_.build_report(is_flush_wanted_ || is_expired_ || sessions_.is_flush_awaited());
}

void Job::obey() {
  const format::Decree& decree = facts_.decree;
  restores_.obey_start();  // Ranks that begin hear of the levels of their base.
  sessions_.send_dropped(decree.dropped);
  if (decree.flush) storage_.write(*decree.flush);  // Holds the shards before any is freed.
  captures_.retire_useless();
  if (decree.ended && !facts_.ended_at) {
    facts_.ended_at = facts_.clock().now();
    storage_.finish_copies();
    free_memory("the job has ended");
  }
  touch();
}

Result<std::shared_ptr<LentStep>> Job::lend(std::optional<Step> step) {
  CKPT_TRY(auto lent, LentStep::lend({facts_, *this, slots_, replication_, storage_},
                                     {agreement_.view(), peers_.coordinator()}, step));
  std::erase_if(lent_, [](const auto& each) { return each.expired(); });
  lent_.push_back(lent);
  return lent;
}

// Tools let go of Slots that training needs, which then has them at its next turn.
void Job::give_way() {
  for (const std::weak_ptr<LentStep>& each : lent_) {
    const std::shared_ptr<LentStep> lent = each.lock();
    if (lent && lent->give_way()) touch();
  }
}

// The reports say whether the layouts of a job in memory alone have changed.
void Job::look_for_missing_pieces() {
  CoverageCheck& coverage = storage_.coverage();
  coverage.update(peers_.is_coordinator());
  const bool is_in_memory = facts_.directory.empty() && facts_.committed;
  if (!is_in_memory || !peers_.is_coordinator()) return;
  coverage.update_held(*facts_.committed, [this] { return describe_held(*facts_.committed); });
}

std::optional<CoverageCheck::HeldStep> Job::describe_held(format::StepId at) {
  const agree::StepCopies copies = agree::copies_of_any(agreement_.view(), at);
  std::vector<Digest> models;
  for (const std::optional<agree::Copies>& shard : copies) {
    if (!shard) return std::nullopt;
    models.push_back(shard->model);
  }
  if (models.empty()) return std::nullopt;
  CoverageCheck::HeldStep step;
  step.layouts = storage::digest_of_layouts(models);
  step.open = [this, start = start_of_held(at, copies)] { return open_held(held_parts(), start); };
  return step;
}

HeldShards::Parts Job::held_parts() {
  return {facts_, slots_, replication_, storage_, std::make_shared<SharedRecords>(facts_.clock())};
}

UnsavedWatch::Steps Job::steps_to_compare() {
  UnsavedWatch::Steps steps;
  steps.restored = [this](const format::Start& start) -> UnsavedWatch::OpenShards {
    return [this, start] { return open_held(held_parts(), start); };
  };
  steps.committed = [this](format::StepId at) -> UnsavedWatch::OpenShards {
    const auto held = describe_held(at);
    return held ? held->open : nullptr;
  };
  return steps;
}

void Job::send_notices() {
  control::Notice notice{waiting(), degraded(), storage_.copies_differ().in_words()};
  for (const auto& [number_of_rank, rank] : ranks_) {
    if (rank.session == nullptr || rank.session->events == nullptr) continue;
    sessions_.send_notice(rank, notice);
    notice.differ.clear();  // One trainer logs it, and not each on this node.
  }
}

void Job::admit(std::shared_ptr<wire::Connection> connection, wire::PeerIdentity identity) {
  if (identity.purpose == wire::Purpose::control) {
    peers_.admit(std::move(connection), std::move(identity));
  } else {
    replication_.admit(std::move(connection), std::move(identity));
  }
}

Task<void> Job::stop(Time deadline) {
  const std::shared_ptr<Job> self = shared_from_this();
  CKPT_POINT("stop.begin");
  gate_.stop();
  changed_.close();
  stopped_.close();
  peers_.stop();
  replication_.stop();
  healing_.stop();
  storage_.stop();
  look_.stop();
  auto drained = co_await gate_.drained(facts_.clock(), deadline);
  if (!drained) co_return fail(std::move(drained).error());
  co_return Status{};
}

}  // namespace ckpt::node
