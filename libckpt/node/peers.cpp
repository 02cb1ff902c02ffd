#include "node/peers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "format/codec.hpp"

namespace ckpt::node {

namespace {

// How long a node that was never reached may be the coordinator: the time of a first dial that is
// answered. One that is not may take three times as long.
constexpr Duration first_dial_time = std::chrono::seconds(1);
// Those under way of one launch, and of the one before.
constexpr std::size_t starts_max = 8;

LineSeams lines_of(const EngineContext& context) {
  if (context.seams.lines) return *context.seams.lines;
  return {context.executor, &context.seams.clock, &context.seams.network};
}

}  // namespace

void Peers::open() {
  EngineContext& context = facts_.context;
  LineSettings settings{facts_.shape.job, facts_.boot, context.options.make_nonce,
                        context.options.heartbeat_interval, context.options.peer_lost_after};
  CKPT_ASSERT(lines_ == nullptr);
  lines_ =
      std::make_shared<PeerLines>(lines_of(context), context.executor,
                                  std::shared_ptr<Peers>(life_.hold(), this), std::move(settings));
}

template <class Call>
void Peers::on_lines(Call call) {
  asio::post(lines_of(facts_.context).executor,
             [lines = lines_, it = std::move(call)]() mutable { it(*lines); });
}

void Peers::members_changed() {
  if (facts_.secret.empty() || is_stopping_) return;        // No secret, no peers.
  if (peers_.empty()) watching_at_ = facts_.clock().now();  // They begin.
  const std::vector<Node>& nodes = facts_.shape.nodes;
  std::map<std::string, Peer> before = std::exchange(peers_, {});
  const bool is_renamed = std::exchange(self_, facts_.node) != facts_.node;
  for (const Node& node : nodes) {
    if (node.name == self_) continue;
    Peer& peer = peers_[node.name];
    const auto known = before.find(node.name);
    // Under another name of ours, or at another address, it is heard anew.
    const bool is_same =
        known != before.end() && known->second.address == node.address && !is_renamed;
    if (is_same) peer = std::move(known->second);
    peer.address = node.address;
  }
  std::erase_if(unreached_, [&](const auto& entry) {
    const auto peer = peers_.find(entry.first);
    return peer == peers_.end() || !peer->second.was_tried;  // It is gone, or it is another now.
  });
  on_lines([nodes, self = facts_.node, secret = facts_.secret](PeerLines& lines) {
    lines.set_members(nodes, self, secret);
  });
}

void Peers::wake(const format::NodeReport& report) {
  if (is_stopping_ || peers_.empty()) return;
  Clock& clock = facts_.clock();
  if (clock.now() - beat_at_ >= facts_.context.options.heartbeat_interval) {
    beat_at_ = clock.now();
    on_lines([](PeerLines& lines) { lines.beat(); });
  }
  Statement statement;
  const bool leads = is_coordinator();
  const format::Decree& decree = facts_.decree;
  if (leads && decree.coordinator == facts_.node) {
    statement.kind = wire::FrameKind::decree;
    statement.number = decree.sequence;
  } else if (!leads) {
    statement.number = report.sequence;
    statement.to = coordinator();
  }
  const bool is_same = statement.kind == stated_.kind && statement.number == stated_.number &&
                       statement.to == stated_.to;
  if (is_same) return;
  stated_ = statement;
  if (statement.kind == wire::FrameKind::decree) {
    statement.body = std::make_shared<const std::vector<std::byte>>(format::encode(decree));
    if (decree.start) {
      remember(decree.start);
      statement.start = decree.start.digest();
      statement.start_body = decree.start.encoded();
    }
  } else if (statement.number != 0) {
    remember(report.start);
    statement.body = std::make_shared<const std::vector<std::byte>>(format::encode(report));
  }
  on_lines([it = std::move(statement)](PeerLines& lines) mutable { lines.state(std::move(it)); });
}

void Peers::stop() {
  is_stopping_ = true;
  on_lines([](PeerLines& lines) { lines.stop(); });
}

// The first that is heard; one that was not tried yet may be it: then nobody decides for a moment.
std::string Peers::coordinator() const {
  for (const Node& node : facts_.shape.nodes) {
    const bool is_it = node.name == facts_.node || is_heard(node.name);
    if (is_it || may_come(node.name)) return node.name;
  }
  return facts_.node;
}

bool Peers::is_coordinator() const {
  return coordinator() == facts_.node;
}

bool Peers::is_heard_by_others() const {
  const EngineOptions& options = facts_.context.options;
  const Duration limit = still_max(options.peer_lost_after, options.heartbeat_interval);
  return peers_.empty() || facts_.clock().now() - watching_at_ < limit;
}

bool Peers::is_heard(const std::string& node) const {
  const auto peer = peers_.find(node);
  return peer != peers_.end() && peer->second.is_heard;
}

bool Peers::is_live(const std::string& node) const {
  return is_heard(node) || decreed(node) != nullptr;
}

const format::LiveNode* Peers::decreed(const std::string& node) const {
  const format::Decree& decree = facts_.decree;
  const auto live = std::lower_bound(
      decree.live.begin(), decree.live.end(), node,
      [](const format::LiveNode& one, const std::string& name) { return one.name < name; });
  const bool is_listed = live != decree.live.end() && live->name == node && peers_.contains(node);
  // Last, since it looks at all nodes where none is heard, and this is asked for each of them.
  const bool is_known =
      is_listed && decree.coordinator != facts_.node && decree.coordinator == coordinator();
  return is_known ? &*live : nullptr;
}

bool Peers::may_come(const std::string& node) const {
  const auto peer = peers_.find(node);
  if (peer == peers_.end() || peer->second.is_heard || peer->second.was_tried) return false;
  const auto& since = peer->second.watched_since;
  const auto others = static_cast<Duration::rep>(peers_.size());
  const Duration longest = first_dial_time + others * spread_per_node;
  return !since || facts_.clock().now() - *since < longest;
}

std::uint64_t Peers::boot_of(const std::string& node) const {
  const auto peer = peers_.find(node);
  if (peer == peers_.end()) return 0;
  const format::LiveNode* live = peer->second.is_heard ? nullptr : decreed(node);
  return live != nullptr ? live->boot : peer->second.boot;
}

std::string Peers::trouble() const {
  const Time now = facts_.clock().now();
  std::string all;
  for (const auto& [node, unreached] : unreached_) {
    if (now - unreached.since < facts_.context.options.peer_lost_after) continue;
    all += fmt::format("{}node {} is not reached: {}", all.empty() ? "" : "; ", node,
                       unreached.failure);
  }
  return all;
}

void Peers::admit(std::shared_ptr<wire::Connection> connection, wire::PeerIdentity identity) {
  const LineSeams seams = lines_of(facts_.context);
  auto moved = is_stopping_ ? nullptr : seams.network->adopt(connection);
  if (!moved) {
    connection->close();
    return;
  }
  on_lines([it = std::move(moved), node = std::move(identity.node), boot = identity.boot](
               PeerLines& lines) mutable { lines.admit(std::move(it), std::move(node), boot); });
}

Task<std::shared_ptr<wire::Connection>> Peers::dial(std::string node, wire::Purpose purpose,
                                                    std::uint64_t* boot) {
  const auto peer = peers_.find(node);
  if (peer == peers_.end()) {
    co_return fail(Errc::not_found, "dial node " + node + ": not in the job's list");
  }
  EngineContext& context = facts_.context;
  DialTarget target{
      peer->second.address, facts_.shape.job, facts_.node, node,
      facts_.secret,        facts_.boot,      purpose,     context.options.make_nonce};
  auto connection =
      co_await dial_peer(context.seams.network, context.seams.clock, std::move(target), boot);
  co_return connection;
}

// --- what the lines hear ---

void Peers::heard(const std::string& node, std::uint64_t boot, std::uint64_t stated) {
  const auto found = peers_.find(node);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  if (std::exchange(peer.boot, boot) != boot) peer.waiting = nullptr;  // It is of the one before.
  peer.is_heard = true;
  unreached_.erase(node);
  heard_.stated(node, boot, stated);
  life_.touch();
}

void Peers::lost(const std::string& node) {
  const auto peer = peers_.find(node);
  if (peer == peers_.end()) return;
  peer->second.is_heard = false;
  life_.touch();
}

void Peers::attempted(const std::string& node, const std::string& failure) {
  const auto peer = peers_.find(node);
  if (peer == peers_.end()) return;
  peer->second.was_tried = true;
  if (failure.empty() || peer->second.is_heard) {
    unreached_.erase(node);
  } else {
    const Time now = facts_.clock().now();
    unreached_.try_emplace(node, Unreached{now, {}}).first->second.failure = failure;
  }
  life_.touch();
}

void Peers::watched(const std::string& node, bool is_it) {
  const auto peer = peers_.find(node);
  if (peer == peers_.end()) return;
  peer->second.was_tried = false;
  unreached_.erase(node);
  peer->second.watched_since.reset();
  if (is_it) peer->second.watched_since = facts_.clock().now();
  life_.touch();
}

void Peers::received(const std::string& node, wire::Message message) {
  if (is_stopping_ || !peers_.contains(node)) return;
  if (message.kind == wire::FrameKind::start) return received_start(message);
  if (message.kind == wire::FrameKind::ask_start) return answer_question(node, message);
  const auto drop = [&] { on_lines([node](PeerLines& lines) { lines.drop(node); }); };
  if (message.kind == wire::FrameKind::report) {
    auto report = format::decode_node_report(message.body);
    if (!report || report->node != node) return drop();
    take_report(node, std::move(*report));
  } else {
    auto decree = format::decode_decree(message.body);
    if (!decree || decree->coordinator != node) return drop();
    take_decree(node, std::move(*decree));
  }
}

void Peers::take_report(const std::string& node, format::NodeReport report) {
  const format::SharedStart start = report.start;
  with_start(node, start, [this, node, it = std::move(report)](format::SharedStart known) mutable {
    it.start = std::move(known);
    on_lines([node, taken = Taken{wire::FrameKind::report, it.boot, it.sequence}](
                 PeerLines& lines) { lines.take(node, taken); });
    heard_.report_received(std::move(it));
    life_.touch();
  });
}

void Peers::take_decree(const std::string& node, format::Decree decree) {
  const format::SharedStart start = decree.start;
  with_start(node, start, [this, node, it = std::move(decree)](format::SharedStart known) mutable {
    it.start = std::move(known);
    on_lines([node, taken = Taken{wire::FrameKind::decree, it.coordinator_boot, it.sequence}](
                 PeerLines& lines) { lines.take(node, taken); });
    if (is_replaced(it)) {  // Not at once: somebody may be walking through the peers.
      asio::post(facts_.context.executor,
                 [this, held = life_.hold(), newer = it.incarnation] { leave(newer); });
      return;
    }
    heard_.decree_received(std::move(it));
    life_.touch();
  });
}

// A newer list gave our name to another daemon. Our lines and its own would end one another.
bool Peers::is_replaced(const format::Decree& decree) const {
  return decree.incarnation > facts_.shape.incarnation &&
         std::ranges::any_of(decree.live, [this](const format::LiveNode& live) {
           return live.name == self_ && live.boot != facts_.boot;
         });
}

void Peers::leave(std::uint64_t incarnation) {
  if (is_stopping_ || peers_.empty() || incarnation <= facts_.shape.incarnation) return;
  log_warning(
      "job={} node={} is another daemon in the newer list of nodes (incarnation {}): this one "
      "keeps "
      "away from its peers until a trainer attaches with a newer list",
      facts_.shape.job, self_, incarnation);
  peers_.clear();
  unreached_.clear();
  on_lines([self = self_](PeerLines& lines) { lines.set_members({}, self, {}); });
  life_.touch();
}

void Peers::watching(Time at) {
  const bool was_heard = is_heard_by_others();
  watching_at_ = at;
  if (!was_heard) life_.touch();
}

void Peers::stood_still() {
  stood_still_at_ = facts_.clock().now();
  for (auto& [node, peer] : peers_) peer.is_heard = false;
  life_.touch();
}

// --- Starts, by their digests ---

void Peers::with_start(const std::string& node, const format::SharedStart& start,
                       std::function<void(format::SharedStart)> take) {
  Peer& peer = peers_.at(node);
  peer.waiting = nullptr;
  peer.waits_for.reset();
  format::SharedStart known = find_start(start);
  if (!start || known) return take(std::move(known));
  peer.waiting = std::move(take);
  peer.waits_for = start;
  on_lines([node, digest = start.digest()](PeerLines& lines) { lines.ask(node, digest); });
}

format::SharedStart Peers::find_start(const format::SharedStart& start) const {
  const auto known = std::find(starts_.begin(), starts_.end(), start);
  return start && known != starts_.end() ? *known : format::SharedStart();
}

void Peers::remember(format::SharedStart start) {
  if (!start || find_start(start)) return;
  starts_.push_back(std::move(start));
  if (starts_.size() > starts_max) starts_.pop_front();
}

void Peers::received_start(const wire::Message& message) {
  auto start = format::decode_start(message.body);
  if (!start) return;
  const format::SharedStart known(std::move(*start));
  remember(known);
  for (auto& [node, peer] : peers_) {
    if (!peer.waiting || peer.waits_for != known) continue;
    const auto take = std::exchange(peer.waiting, nullptr);
    peer.waits_for.reset();
    take(known);
  }
}

void Peers::answer_question(const std::string& node, const wire::Message& message) {
  format::Reader reader(message.body, "question for a start");
  const Digest digest = reader.digest();
  if (!reader.finish()) return;
  const format::SharedStart known = find_start(format::SharedStart::unknown(digest));
  if (!known) return;  // The statement that named it has been replaced meanwhile.
  on_lines([node, body = known.encoded()](PeerLines& lines) { lines.answer(node, body); });
}

}  // namespace ckpt::node
