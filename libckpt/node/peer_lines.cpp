#include "node/peer_lines.hpp"

#include "base/assert.hpp"
#include "base/log.hpp"
#include "base/spawn.hpp"
#include "format/codec.hpp"

namespace ckpt::node {

namespace {

// At most so many of one line wait to be sent.
constexpr std::size_t errands_max = 16;
// Longer than anything that a sound engine does on its thread.
constexpr Duration engine_silence_max = std::chrono::seconds(30);

}  // namespace

PeerLines::PeerLines(LineSeams seams, asio::any_io_executor engine,
                     std::weak_ptr<LineEvents> events, LineSettings settings)
    : seams_(std::move(seams)),
      engine_(std::move(engine)),
      heard_by_(std::move(events)),
      settings_(std::move(settings)),
      random_(settings_.boot),
      engine_beat_at_(seams_.clock->now()),
      stopped_(*seams_.clock) {}

void PeerLines::set_members(std::vector<Node> nodes, std::string self, std::string secret) {
  if (is_stopping_) return;
  const bool is_renamed = self_ != self;
  self_ = std::move(self);
  secret_ = std::move(secret);
  members_at_ = seams_.clock->now();
  std::map<std::string, Peer> before = std::exchange(peers_, {});
  order_.clear();
  wanted_end_ = nodes.size();
  for (const Node& node : nodes) {
    Entry* entry = nullptr;
    if (node.name == self_) {
      place_ = order_.size();
    } else {
      entry = &*peers_.try_emplace(node.name).first;
      Peer& peer = entry->second;
      const auto known = before.find(node.name);
      const bool is_same = known != before.end() && known->second.address == node.address;
      if (is_same && !is_renamed) {
        peer = std::move(known->second);
        before.erase(known);
      } else if (known != before.end()) {
        peer.is_kept = known->second.is_kept;  // The coroutine goes by the name, and dials anew.
      }
      peer.address = node.address;
    }
    order_.push_back(entry);
  }
  for (const auto& [name, peer] : before) {
    for (const auto& line : std::list(peer.lines)) end(line);
  }
  // A state heard under another name or address may have reached the engine after its new list.
  for (const auto& [name, peer] : peers_) {
    if (!peer.is_live) tell([node = name](LineEvents& events) { events.lost(node); });
  }
  choose();
  if (is_watching_ || peers_.empty()) return;
  is_watching_ = true;
  run_detached(seams_.executor, watch());
}

bool PeerLines::is_engine_well() const {
  return seams_.clock->now() - engine_beat_at_ < engine_silence_max;
}

void PeerLines::beat() {
  engine_beat_at_ = seams_.clock->now();
}

void PeerLines::admit(std::shared_ptr<wire::Connection> connection, std::string node,
                      std::uint64_t boot) {
  run_detached(seams_.executor, talk(std::move(connection), std::move(node), boot, false));
}

// A node that was started again numbers its statements anew, and has taken none of ours.
void PeerLines::note_boot(Peer& peer, std::uint64_t boot) {
  if (std::exchange(peer.boot, boot) == boot) return;
  peer.stated = peer.taken = 0;
  peer.is_boot_told = false;
  for (const auto& line : std::list(peer.lines)) end(line);
}

// Reads one line until it ends.
asio::awaitable<void> PeerLines::talk(std::shared_ptr<wire::Connection> connection,
                                      std::string node, std::uint64_t boot, bool is_ours) {
  const auto self = shared_from_this();
  const auto peer = peers_.find(node);
  if (is_stopping_ || peer == peers_.end()) {
    connection->close();
    co_return;
  }
  const auto line = std::make_shared<Line>(std::move(connection), node, *seams_.clock);
  line->is_ours = is_ours;
  note_boot(peer->second, boot);
  peer->second.lines.push_back(line);
  run_detached(seams_.executor, speak(line));
  while (line->is_open) {
    const Time silence_end = seams_.clock->after(2 * settings_.lost_after);
    auto message = co_await wire::read_message(*line->connection, silence_end);
    if (!message && line->is_open)
      log_info("job={} peer={} line lost: {}", settings_.job, node, message.error().message());
    if (!message || !line->is_open || !hear(*line, std::move(*message))) break;
  }
  end(line);
}

// False: a line takes no such message, or none from this node.
bool PeerLines::hear(Line& line, wire::Message message) {
  const auto found = peers_.find(line.node);
  if (found == peers_.end()) return false;
  Peer& peer = found->second;
  const bool is_state =
      message.kind == wire::FrameKind::report || message.kind == wire::FrameKind::decree;
  const bool is_alive = message.kind == wire::FrameKind::alive;
  const bool is_errand =
      message.kind == wire::FrameKind::start || message.kind == wire::FrameKind::ask_start;
  if (!is_state && !is_alive && !is_errand) return false;
  const Time now = seams_.clock->now();
  const std::uint64_t stated = is_errand ? peer.stated : message.ticket;
  peer.heard_at = now;
  const bool is_news = !peer.is_live || !peer.is_boot_told || stated != peer.stated;
  if (!peer.is_live) {
    log_info("job={} peer={} is alive", settings_.job, line.node);
    peer.is_live = true;
    choose();
  }
  peer.stated = stated;
  peer.is_boot_told = peer.is_boot_told || !is_errand;
  if (is_state) {
    peer.stated_kind = message.kind;
    peer.taken = 0;  // The engine's answer is on its way.
  }
  if (!is_alive) {
    tell([node = line.node, boot = peer.boot, stated,
          it = std::move(message)](LineEvents& events) mutable {
      events.heard(node, boot, stated);
      events.received(node, std::move(it));
    });
    return true;
  }
  if (is_news) {
    tell([node = line.node, boot = peer.boot, stated](LineEvents& events) {
      events.heard(node, boot, stated);
    });
  }
  const bool is_lacking =
      line.said != 0 && message.offset != line.said && now - line.said_at >= 2 * settings_.beat;
  if (is_lacking) {
    log_info("job={} peer={} lacks what was stated: sent again", settings_.job, line.node);
    line.said = 0;
    line.start.reset();
    line.changed.notify_all();
  }
  return true;
}

void PeerLines::state(Statement statement) {
  statement_ = std::move(statement);
  for (const auto& [name, peer] : peers_) {
    for (const auto& line : peer.lines) line->changed.notify_all();
  }
}

void PeerLines::take(const std::string& node, const Taken& taken) {
  const auto peer = peers_.find(node);
  if (peer == peers_.end()) return;
  const bool is_of_now = taken.boot == peer->second.boot && taken.kind == peer->second.stated_kind;
  if (is_of_now) peer->second.taken = taken.number;
}

void PeerLines::ask(const std::string& node, const Digest& start) {
  const auto peer = peers_.find(node);
  if (peer == peers_.end() || peer->second.lines.empty()) return;
  format::Writer writer;
  writer.digest(start);
  wire::Message message;
  message.kind = wire::FrameKind::ask_start;
  message.body = writer.take();
  send_on(*peer->second.lines.back(), std::move(message));
}

void PeerLines::answer(const std::string& node, SharedBytes start) {
  const auto peer = peers_.find(node);
  if (peer == peers_.end() || peer->second.lines.empty()) return;
  wire::Message message;
  message.kind = wire::FrameKind::start;
  message.body = *start;
  send_on(*peer->second.lines.back(), std::move(message));
}

// A message that does not fit is asked for again.
void PeerLines::send_on(Line& line, wire::Message message) {
  if (line.errands.size() >= errands_max) return;
  line.errands.push_back(std::move(message));
  line.changed.notify_all();
}

void PeerLines::drop(const std::string& node) {
  const auto peer = peers_.find(node);
  if (peer == peers_.end()) return;
  for (const auto& line : std::list(peer->second.lines)) end(line);
}

// Writes one line until it ends.
asio::awaitable<void> PeerLines::speak(std::shared_ptr<Line> line) {
  const auto self = shared_from_this();
  while (line->is_open && is_engine_well()) {
    auto has_said = co_await say_next(line);
    if (!has_said) break;
    if (*has_said) continue;
    auto woken = co_await line->changed.wait_until(line->beat_at);
    if (!woken) break;
  }
  end(line);
}

Task<bool> PeerLines::say_next(std::shared_ptr<Line> line) {
  std::optional<wire::Message> next = next_message(*line);
  if (!next) co_return false;
  const Time deadline = seams_.clock->after(settings_.lost_after);
  wire::Message message = std::move(*next);
  CKPT_CO_CHECK(co_await wire::write_message(*line->connection, std::move(message), deadline));
  co_return true;
}

// In this order: questions and answers, what is stated and was not sent here, a beat that is due.
std::optional<wire::Message> PeerLines::next_message(Line& line) {
  wire::Message message;
  if (!line.errands.empty()) {
    message = std::move(line.errands.front());
    line.errands.pop_front();
    return message;
  }
  const Time now = seams_.clock->now();
  const bool is_for_it = statement_.is_for(line.node);
  if (!is_for_it) line.said = 0;  // Should it be for this node again, it is sent again.
  const bool is_said = line.said == statement_.number && line.said_kind == statement_.kind;
  if (is_for_it && !is_said) {
    if (statement_.start && line.start != statement_.start) {
      line.start = statement_.start;
      message.kind = wire::FrameKind::start;
      message.body = *statement_.start_body;
      return message;
    }
    line.said = statement_.number;
    line.said_kind = statement_.kind;
    line.said_at = now;
    message.kind = statement_.kind;
    message.ticket = statement_.number;
    message.body = *statement_.body;
    return message;
  }
  if (now < line.beat_at) return std::nullopt;
  line.beat_at = now + settings_.beat;
  message.kind = wire::FrameKind::alive;
  message.ticket = is_for_it ? statement_.number : 0;
  const auto peer = peers_.find(line.node);
  message.offset = peer != peers_.end() ? peer->second.taken : 0;
  return message;
}

void PeerLines::end(const std::shared_ptr<Line>& line) {
  line->is_open = false;
  line->connection->close();
  line->changed.close();
  const auto peer = peers_.find(line->node);
  if (peer != peers_.end()) peer->second.lines.remove(line);
}

void PeerLines::stop() {
  is_stopping_ = true;
  stopped_.close();
  for (const auto& [name, peer] : peers_) {
    for (const auto& line : std::list(peer.lines)) end(line);
  }
}

}  // namespace ckpt::node
