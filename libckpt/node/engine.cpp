#include "node/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/log.hpp"
#include "node/context.hpp"
#include "node/job.hpp"
#include "storage/places.hpp"
#include "wire/peer_acceptor.hpp"
#include "wire/secret.hpp"

namespace ckpt::node {

namespace {

constexpr Duration listen_retry_after = std::chrono::seconds(1);
constexpr Duration listen_time = std::chrono::seconds(10);  // To look our own name up.
constexpr Duration sweep_interval = std::chrono::seconds(1);
constexpr Duration job_stop_time = std::chrono::seconds(5);
constexpr std::size_t left_directories_max = 256;  // A few hundred bytes each.

}  // namespace

struct Engine::State : std::enable_shared_from_this<Engine::State> {
  State(asio::any_io_executor executor, Seams seams, EngineOptions given)
      : held_context(std::make_shared<EngineContext>(
            EngineContext{std::move(executor), seams, given,
                          arena::MemoryBudget(given.memory_budget), Random(given.boot)})),
        context(*held_context),
        opened(seams.clock) {}

  Job* job_of(SessionId id) {
    const auto found = sessions.find(id);
    return found == sessions.end() ? nullptr : found->second.get();
  }
  Task<std::shared_ptr<Job>> find_or_open(AttachRequest request);
  void listen_for(const Job& job, const AttachRequest& request);
  asio::awaitable<void> listen(std::string address);
  void admit(std::shared_ptr<wire::Connection> connection, wire::PeerIdentity identity);
  asio::awaitable<void> sweep();
  static Status check_request(const AttachRequest& request);
  static bool makes_way(const Job& job, const AttachRequest& newcomer);
  void remember_directory(const JobFacts& facts);
  void let_go(std::shared_ptr<Job> job, const char* why);
  asio::awaitable<void> stop_job(std::shared_ptr<Job> job);
  Task<void> flush(Duration deadline, std::uint32_t failures_max);

  const SharedContext held_context;  // Also by the jobs.
  EngineContext& context;
  std::map<std::string, std::shared_ptr<Job>> jobs;
  std::set<std::string> opening;  // Jobs whose directory is being read.
  std::map<SessionId, std::shared_ptr<Job>> sessions;
  std::map<std::string, std::shared_ptr<wire::Listener>> listeners;  // By address; null: retried.
  Signal opened;
  std::map<std::string, LeftDirectory> left;  // By job.
  bool is_stopping = false;
};

Engine::Engine(asio::any_io_executor executor, Seams seams, EngineOptions options)
    : state_(std::make_shared<State>(std::move(executor), seams, std::move(options))) {
  state_->context.spawn(state_->sweep());
}

Engine::~Engine() {
  // A simulated kill destroys the executor's context first: nothing of it runs any more.
  state_->is_stopping = true;
}

Task<std::shared_ptr<Job>> Engine::State::find_or_open(AttachRequest request) {
  const std::shared_ptr<State> self = shared_from_this();
  // Ranks of one node come together: the first opens the job, the others wait for it.
  const Time deadline = context.seams.clock.after(std::chrono::seconds(30));
  while (opening.contains(request.job)) {
    CKPT_CO_TRY(const bool was_woken, co_await opened.wait_until(deadline));
    if (!was_woken) {
      co_return fail(Errc::unavailable, "attach to job " + request.job + ": its directory '" +
                                            request.dir + "' does not answer");
    }
  }
  const auto found = jobs.find(request.job);
  if (found != jobs.end() && !makes_way(*found->second, request)) co_return found->second;
  if (found != jobs.end()) let_go(found->second, "another run of that name has come");
  opening.insert(request.job);
  const auto job = std::make_shared<Job>(held_context, request);
  if (const auto before = left.find(request.job); before != left.end())
    job->note_left(before->second);
  // The node that will coordinate looks at all that lies in the directory.
  const bool is_first = request.nodes.front().name == request.node;
  auto status = co_await job->open(is_first);
  opening.erase(request.job);
  opened.notify_all();
  if (!status) co_return fail(std::move(status).error());
  jobs[request.job] = job;
  co_return job;
}

Result<std::string> read_secret(const std::string& secret_file) {
  if (secret_file.empty()) return std::string();
  CKPT_TRY(const auto secret, wire::Secret::read_file(secret_file));
  const auto bytes = secret.bytes();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Task<Attached> Engine::attach(AttachRequest request, SessionEvents& events) {
  const std::shared_ptr<State> state = state_;
  CKPT_CO_CHECK(State::check_request(request));
  if (state->is_stopping) co_return fail(Errc::unavailable, "attach: the daemon is ending");
  CKPT_CO_TRY(auto job, co_await state->find_or_open(request));
  CKPT_CO_TRY(Attached attached, job->attach(request, events));
  state->sessions[attached.session] = job;
  state->listen_for(*job, request);
  co_return attached;
}

// It comes from another process, and a job is named by its list of nodes.
Status Engine::State::check_request(const AttachRequest& request) {
  if (request.nodes.empty()) return fail(Errc::invalid_argument, "attach: without any node");
  const auto places = storage::parse_places(request.dir);
  if (!places) return fail(Error(places.error()).context("attach to job " + request.job));
  return {};
}

Status Engine::check_attach(const AttachRequest& request) const {
  CKPT_CHECK(State::check_request(request));
  const auto job = state_->jobs.find(request.job);
  if (job == state_->jobs.end() || State::makes_way(*job->second, request)) return {};
  return job->second->check_attach(request);
}

void Engine::State::listen_for(const Job& job, const AttachRequest& request) {
  if (job.facts().secret.empty() || job.facts().shape.nodes.size() < 2) return;
  std::string address = context.options.listen_address;
  if (address.empty()) {
    for (const Node& node : request.nodes) {
      if (node.name == request.node) address = node.address;
    }
  }
  if (address.empty() || !listeners.try_emplace(address).second) return;
  context.spawn(listen(address));
}

asio::awaitable<void> Engine::State::listen(std::string address) {
  const std::shared_ptr<State> self = shared_from_this();
  auto options = std::make_shared<wire::ListenerOptions>();
  options->make_nonce = context.options.make_nonce;
  options->find_secret = [this](const std::string& name) -> std::shared_ptr<const wire::Secret> {
    const auto job = jobs.find(name);
    if (job == jobs.end()) return nullptr;
    auto secret = wire::Secret::make(std::as_bytes(std::span(job->second->facts().secret)));
    return secret ? std::make_shared<const wire::Secret>(std::move(*secret)) : nullptr;
  };
  options->find_self = [this](const std::string& name) {
    const auto job = jobs.find(name);
    return job == jobs.end() ? wire::Self{}
                             : wire::Self{job->second->facts().node, job->second->facts().boot};
  };
  LogLimit complaint(60.0);
  while (!is_stopping) {
    const Time deadline = context.seams.clock.after(listen_time);
    auto listener = co_await context.seams.network.listen(address, deadline);
    if (is_stopping) co_return;
    if (listener) {
      listeners[address] = std::shared_ptr<wire::Listener>(std::move(*listener));
      log_info("listens for peers on {}", listeners[address]->address());
      const std::shared_ptr<wire::Listener> held = listeners[address];
      wire::Admit admit_peer = [this](std::shared_ptr<wire::Connection> connection,
                                      wire::PeerIdentity identity) {
        admit(std::move(connection), std::move(identity));
      };
      auto ended =
          co_await wire::admit_peers(*held, context.seams.clock, options, std::move(admit_peer));
      if (is_stopping) co_return;
      if (!ended) log_warning("peers at {}: {}", address, ended.error().message());
      listeners[address].reset();
    } else if (complaint.may_speak()) {
      log_warning("cannot listen for peers on {}, no copies of theirs arrive; tried again: {}",
                  address, listener.error().message());
    }
    const Time again = context.seams.clock.after(listen_retry_after);
    auto slept = co_await sleep_until(context.seams.clock, again);
    if (!slept) co_return;
  }
}

void Engine::State::admit(std::shared_ptr<wire::Connection> connection,
                          wire::PeerIdentity identity) {
  const auto job = jobs.find(identity.job);
  if (is_stopping || job == jobs.end()) {
    connection->close();
  } else {
    job->second->admit(std::move(connection), std::move(identity));
  }
}

// Collects the memory of jobs that are gone.
asio::awaitable<void> Engine::State::sweep() {
  const std::shared_ptr<State> self = shared_from_this();
  while (!is_stopping) {
    const Time again = context.seams.clock.after(sweep_interval);
    auto slept = co_await sleep_until(context.seams.clock, again);
    if (!slept || is_stopping) co_return;
    for (const auto& [name, job] : std::map(jobs)) {
      if (!job->is_finished()) continue;
      let_go(job, "no trainer came back, or the job has ended");
    }
  }
}

// A job that is over keeps its name from nobody.
bool Engine::State::makes_way(const Job& job, const AttachRequest& newcomer) {
  return job.facts().dir != newcomer.dir && job.is_closing() && job.is_finished();
}

// A job that begins anew elsewhere may have been given the wrong directory.
void Engine::State::remember_directory(const JobFacts& facts) {
  if (facts.directory.empty() || !facts.durable) return;
  const bool is_room = left.size() < left_directories_max;
  if (is_room || left.contains(facts.shape.job))
    left[facts.shape.job] = {facts.directory, facts.durable->step};
}

void Engine::State::let_go(std::shared_ptr<Job> job, const char* why) {
  remember_directory(job->facts());
  jobs.erase(job->facts().shape.job);
  std::erase_if(sessions, [&](const auto& entry) { return entry.second == job; });
  job->free_memory(why);
  context.spawn(stop_job(std::move(job)));
}

asio::awaitable<void> Engine::State::stop_job(std::shared_ptr<Job> job) {
  const std::shared_ptr<State> self = shared_from_this();
  const Time deadline = context.seams.clock.after(job_stop_time);
  auto stopped = co_await job->stop(deadline);
  if (!stopped) log_warning("job={} {}", job->facts().shape.job, stopped.error().message());
}

Status Engine::call(SessionId session, control::Call call) {
  Job* job = state_->job_of(session);
  if (job == nullptr)
    return fail(Errc::not_found, fmt::format("{}: no such session", control::name_of(call)));
  return job->call(session, std::move(call));
}

void Engine::detach(SessionId session) {
  Job* job = state_->job_of(session);
  if (job == nullptr) return;
  job->detach(session);
  state_->sessions.erase(session);
}

Task<void> Engine::look_at_storage(Time deadline) {
  std::vector<std::shared_ptr<Job>> jobs;
  for (const auto& [name, job] : state_->jobs) {
    if (job->begin_look()) jobs.push_back(job);
  }
  for (const auto& job : jobs) CKPT_CO_CHECK(co_await job->wait_for_look(deadline));
  co_return Status{};
}

std::string Engine::status_json() const {
  nlohmann::json status;
  status["node"] = state_->context.options.name;
  status["memory"] = {{"budget_bytes", state_->context.budget.limit_bytes()},
                      {"used_bytes", state_->context.budget.used_bytes()}};
  status["jobs"] = nlohmann::json::array();
  for (const auto& [name, job] : state_->jobs) status["jobs"].push_back(job->status());
  return status.dump(2);
}

std::string Engine::recover_json(const std::string& name) const {
  const auto job = state_->jobs.find(name);
  if (job == state_->jobs.end()) return nlohmann::json{{"error", "no such job: " + name}}.dump();
  return job->second->recover().dump(2);
}

Result<std::shared_ptr<LentStep>> Engine::lend(const std::string& name, std::optional<Step> step) {
  const auto job = state_->jobs.find(name);
  if (job != state_->jobs.end()) return job->second->lend(step);
  return fail(Errc::not_found,
              fmt::format("read job {} in memory: this daemon holds nothing of it", name));
}

Status Engine::drop(const std::string& name) {
  const auto found = state_->jobs.find(name);
  if (found == state_->jobs.end()) {
    return fail(Errc::not_found, fmt::format("drop job {}: this daemon holds nothing of it", name));
  }
  const std::shared_ptr<Job> job = found->second;
  if (job->has_trainer()) {
    return fail(Errc::unavailable, fmt::format("drop job {}: a trainer is attached", name));
  }
  state_->let_go(job, "dropped on request");
  return {};
}

bool Engine::is_idle() const {
  return std::all_of(state_->jobs.begin(), state_->jobs.end(), [](const auto& entry) {
    const Job& job = *entry.second;
    return !job.has_trainer() && job.slot_bytes() == 0 && !job.is_copying_last();
  });
}

Task<void> Engine::flush(Duration deadline, std::uint32_t failures_max) {
  const std::shared_ptr<State> state = state_;
  Status flushed = co_await state->flush(deadline, failures_max);
  co_return flushed;
}

void Engine::give_up_flush() {
  if (state_->context.captures != CapturePermission::finished) return;
  state_->context.captures = CapturePermission::refused;
  for (const auto& [name, job] : state_->jobs) job->want_flush(false);
}

Task<void> Engine::State::flush(Duration deadline, std::uint32_t failures_max) {
  const std::shared_ptr<State> self = shared_from_this();
  const Time end = context.seams.clock.after(deadline);
  context.captures = CapturePermission::finished;
  for (const auto& [name, job] : jobs) job->want_flush(true);
  Status first_failure;
  // While one job is waited for, another may fill the Slots that it was granted: they are few.
  const auto is_left = [](const auto& entry) { return !entry.second->is_flushed(false); };
  do {
    for (const auto& [name, job] : std::map(jobs)) {
      auto flushed = co_await job->flush(end, failures_max);
      if (!flushed && first_failure) first_failure = std::move(flushed);
    }
  } while (first_failure && std::any_of(jobs.begin(), jobs.end(), is_left));
  context.captures = first_failure ? CapturePermission::refused : CapturePermission::granted;
  if (!first_failure) {
    for (const auto& [name, job] : jobs) job->want_flush(false);
  }
  co_return first_failure;
}

std::string Engine::held_json() const {
  const auto step_of = [](const std::optional<format::StepId>& at) {
    return at ? nlohmann::json(number(at->step)) : nlohmann::json();
  };
  nlohmann::json answer;
  answer["jobs"] = nlohmann::json::array();
  for (const auto& [name, job] : state_->jobs) {
    const StorageStanding standing = job->storage_standing();
    answer["jobs"].push_back({{"job", standing.job},
                              {"directory", standing.directory},
                              {"durable", step_of(standing.durable)},
                              {"lost", step_of(standing.lost)},
                              {"has_trainer", standing.has_trainer},
                              {"second_place", nullptr}});
    if (standing.second_directory.empty()) continue;
    answer["jobs"].back()["second_place"] = {{"directory", standing.second_directory},
                                             {"newest", step_of(standing.second_newest)}};
  }
  return answer.dump();
}

Task<void> Engine::stop(Duration deadline) {
  const std::shared_ptr<State> state = state_;
  state->context.captures = CapturePermission::refused;
  const Time end = state->context.seams.clock.after(deadline);
  Status first_failure;
  for (const auto& [name, job] : std::map(state->jobs)) {
    auto stopped = co_await job->stop(end);
    if (!stopped && first_failure) first_failure = std::move(stopped);
  }
  state->is_stopping = true;
  for (const auto& [address, listener] : state->listeners) {
    if (listener) listener->close();
  }
  co_return first_failure;
}

}  // namespace ckpt::node
