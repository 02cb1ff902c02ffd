#include "node/peers.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "format/agreement.hpp"
#include "node/job.hpp"
#include "wire/message.hpp"

namespace ckpt::node {

namespace {

constexpr Duration dial_deadline = std::chrono::seconds(3);
constexpr Duration redial_after = std::chrono::milliseconds(100);
constexpr Duration redial_after_max = std::chrono::seconds(2);

}  // namespace

// What was sent on one connection, so that only news and heartbeats are.
struct Peers::Sent {
  std::uint64_t report_sequence = 0;
  std::uint64_t decree_sequence = 0;
  Time at{};
  bool has_sent = false;
};

Peers::Peers(Job& job) : job_(job), changed_(job.context().seams.clock) {}
Peers::~Peers() = default;

void Peers::members_changed() {
  if (job_.secret().empty()) return;  // No secret, no peers.
  std::erase_if(peers_, [&](const auto& entry) {
    const auto& nodes = job_.shape().nodes;
    return entry.first == job_.node() ||
           std::none_of(nodes.begin(), nodes.end(),
                        [&](const Node& node) { return node.name == entry.first; });
  });
  for (const Node& node : job_.shape().nodes) {
    if (node.name == job_.node()) continue;
    Peer& peer = peers_[node.name];
    if (peer.address != node.address) peer.heard_at.reset();  // It was another host.
    peer.address = node.address;
    if (peer.is_dialing) continue;
    peer.is_dialing = true;
    asio::co_spawn(job_.context().executor, control(node.name), asio::detached);
  }
  changed_.notify_all();
}

bool Peers::are_still(const std::string& self, const std::string& node,
                      const std::string& address) const {
  const auto peer = peers_.find(node);
  return job_.node() == self && peer != peers_.end() && peer->second.address == address;
}

void Peers::wake() {
  changed_.notify_all();
}

void Peers::stop() {
  is_stopping_ = true;
  changed_.close();
}

bool Peers::is_live(const std::string& node) const {
  const auto peer = peers_.find(node);
  if (peer == peers_.end() || !peer->second.heard_at) return false;
  const Time now = job_.context().seams.clock.now();
  return now - *peer->second.heard_at < job_.context().options.peer_lost_after;
}

std::uint64_t Peers::boot_of(const std::string& node) const {
  const auto peer = peers_.find(node);
  return peer == peers_.end() ? 0 : peer->second.boot;
}

std::string Peers::trouble() const {
  const Time now = job_.context().seams.clock.now();
  std::string all;
  for (const auto& [node, peer] : peers_) {
    if (!peer.unreached_since ||
        now - *peer.unreached_since < job_.context().options.peer_lost_after) {
      continue;
    }
    all += fmt::format("{}node {} is not reached: {}", all.empty() ? "" : "; ", node, peer.failure);
  }
  return all;
}

void Peers::note_attempt(const std::string& node, const std::string& failure) {
  const auto peer = peers_.find(node);
  if (peer == peers_.end()) return;
  if (failure.empty()) {
    peer->second.unreached_since.reset();
  } else if (!peer->second.unreached_since) {
    peer->second.unreached_since = job_.context().seams.clock.now();
  }
  peer->second.failure = failure;
  job_.touch();
}

Task<std::shared_ptr<wire::Connection>> Peers::dial(std::string node, wire::Purpose purpose,
                                                    std::uint64_t* boot) {
  const auto peer = peers_.find(node);
  if (peer == peers_.end()) {
    co_return fail(Errc::not_found, "dial node " + node + ": not in the job's list");
  }
  const std::string& secret = job_.secret();
  CKPT_CO_TRY(wire::Secret checked, wire::Secret::make(std::as_bytes(std::span(secret))));
  const std::string address = peer->second.address;
  const Time deadline = job_.context().seams.clock.after(dial_deadline);
  auto connection = co_await job_.context().seams.network.connect(address, deadline);
  if (!connection) co_return connection;
  wire::DialerOptions options;
  options.job = job_.shape().job;
  options.node = job_.node();
  options.peer_node = node;
  options.boot = job_.boot();
  options.purpose = purpose;
  options.secret = std::make_shared<const wire::Secret>(std::move(checked));
  options.make_nonce = job_.context().options.make_nonce;
  auto identity = co_await wire::greet_as_dialer(*connection, std::move(options), deadline);
  if (!identity) co_return fail(std::move(identity).error());
  if (boot != nullptr) *boot = identity->boot;
  co_return connection;
}

asio::awaitable<void> Peers::control(std::string node) {
  const std::shared_ptr<Job> job = job_.shared_from_this();
  Clock& clock = job_.context().seams.clock;
  Duration backoff = redial_after;
  LogLimit complaint(60.0);
  Errc complained_of{};  // Another reason is news: "refused" must not hide behind "not up yet".
  while (!is_stopping_ && peers_.contains(node)) {
    const std::string self = job_.node();
    const std::string address = peers_.at(node).address;
    auto connection = co_await dial(node, wire::Purpose::control, nullptr);
    note_attempt(node, connection ? std::string() : connection.error().message());
    if (connection) {
      backoff = redial_after;
      const auto sent = std::make_shared<Sent>();
      Status told;
      while (told && !is_stopping_ && are_still(self, node, address)) {
        told = co_await tell(*connection, node, sent);
      }
      (*connection)->close();
      if (!told)
        log_info("job={} peer={} lost: {}", job->shape().job, node, told.error().message());
    } else if (complaint.may_speak() || connection.error().code() != complained_of) {
      complained_of = connection.error().code();
      log_warning("job={} peer={} not reached, tried again: {}", job->shape().job, node,
                  connection.error().message());
    }
    if (is_stopping_) co_return;
    auto slept = co_await sleep_until(clock, clock.after(backoff));
    if (!slept) co_return;
    backoff = std::min(backoff * 2, redial_after_max);
  }
  if (!is_stopping_) {
    auto peer = peers_.find(node);
    if (peer != peers_.end()) peer->second.is_dialing = false;
  }
}

// Sends what is new, or a sign of life, then waits for news or the next heartbeat.
Task<void> Peers::tell(std::shared_ptr<wire::Connection> connection, std::string node,
                       std::shared_ptr<Sent> sent) {
  Clock& clock = job_.context().seams.clock;
  const Duration interval = job_.context().options.heartbeat_interval;
  const Time deadline = clock.after(job_.context().options.peer_lost_after);
  const bool is_due = !sent->has_sent || clock.now() - sent->at >= interval;
  bool has_said = false;
  if (job_.is_coordinator()) {
    const format::Decree& decree = job_.decree();
    const bool is_own = decree.coordinator == job_.node();
    if (is_own && (is_due || decree.sequence != sent->decree_sequence)) {
      wire::Message message;
      message.kind = wire::FrameKind::decree;
      message.body = format::encode(decree);
      sent->decree_sequence = decree.sequence;
      CKPT_CO_CHECK(co_await wire::write_message(*connection, std::move(message), deadline));
      has_said = true;
    }
  } else if (job_.coordinator() == node) {
    const format::NodeReport& report = job_.report();
    if (is_due || report.sequence != sent->report_sequence) {
      wire::Message message;
      message.kind = wire::FrameKind::report;
      message.body = format::encode(report);
      sent->report_sequence = report.sequence;
      CKPT_CO_CHECK(co_await wire::write_message(*connection, std::move(message), deadline));
      has_said = true;
    }
  }
  if (!has_said && is_due) {
    wire::Message message;
    message.kind = wire::FrameKind::alive;
    CKPT_CO_CHECK(co_await wire::write_message(*connection, std::move(message), deadline));
    has_said = true;
  }
  if (has_said) {
    sent->at = clock.now();
    sent->has_sent = true;
  }
  auto woken = co_await changed_.wait_until(sent->at + interval);
  if (!woken) co_return fail(std::move(woken).error());
  co_return Status{};
}

void Peers::admit(std::shared_ptr<wire::Connection> connection, wire::PeerIdentity identity) {
  if (is_stopping_) {
    connection->close();
    return;
  }
  asio::co_spawn(job_.context().executor, listen_to(std::move(connection), std::move(identity)),
                 asio::detached);
}

asio::awaitable<void> Peers::listen_to(std::shared_ptr<wire::Connection> connection,
                                       wire::PeerIdentity identity) {
  const std::shared_ptr<Job> job = job_.shared_from_this();
  Clock& clock = job_.context().seams.clock;
  const Duration silence_max = 2 * job_.context().options.peer_lost_after;
  const std::string self = job_.node();  // As the peer calls us.
  while (!is_stopping_) {
    auto message = co_await wire::read_message(*connection, clock.after(silence_max));
    if (!message || is_stopping_) break;
    auto peer = peers_.find(identity.node);
    if (peer == peers_.end()) break;  // Not a member any more.
    if (job_.node() != self) break;   // It may have another name by now, too.
    const bool was_live = is_live(identity.node);
    peer->second.heard_at = clock.now();
    peer->second.boot = identity.boot;
    if (!was_live) {
      log_info("job={} peer={} is alive", job->shape().job, identity.node);
      job->touch();
    }
    if (message->kind == wire::FrameKind::report) {
      auto report = format::decode_node_report(message->body);
      if (!report || report->node != identity.node) break;
      job->report_received(std::move(*report));
    } else if (message->kind == wire::FrameKind::decree) {
      auto decree = format::decode_decree(message->body);
      if (!decree || decree->coordinator != identity.node) break;
      job->decree_received(*decree);
    } else if (message->kind != wire::FrameKind::alive) {
      break;
    }
  }
  connection->close();
}

}  // namespace ckpt::node
