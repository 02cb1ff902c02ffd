#include "node/peer_lines.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "format/codec.hpp"

namespace ckpt::node {

namespace {

// The coordinator, and two that can succeed it at once.
constexpr std::size_t heads_max = 3;
// Nodes behind it that a coordinator dials when they do not come by themselves.
constexpr std::size_t missing_dials_max = 4;
constexpr Duration missing_after = std::chrono::seconds(1);
constexpr Duration redial_after = std::chrono::milliseconds(100);
constexpr Duration redial_after_max = std::chrono::seconds(2);
// For each node that was not reached all pauses get longer, to some sixty dials in a second.
constexpr Duration redial_per_node = std::chrono::milliseconds(16);
// At most so many of one line wait to be sent.
constexpr std::size_t errands_max = 16;
// Longer than anything that a sound engine does on its thread.
constexpr Duration engine_silence_max = std::chrono::seconds(30);

}  // namespace

struct PeerLines::Line {
  Line(std::shared_ptr<wire::Connection> the_connection, std::string the_node, Clock& clock)
      : connection(std::move(the_connection)), node(std::move(the_node)), changed(clock) {}

  std::shared_ptr<wire::Connection> connection;
  std::string node;
  Signal changed;
  bool is_ours = false;  // We dialed.
  bool is_open = true;
  wire::FrameKind said_kind = wire::FrameKind::report;
  std::uint64_t said = 0;  // The number of the statement that was sent; 0: none.
  Time said_at{}, beat_at{};
  std::optional<Digest> start;       // The newest that was sent.
  std::list<wire::Message> errands;  // Questions, and answers to those of the other end.
};

PeerLines::PeerLines(LineSeams seams, asio::any_io_executor engine,
                     std::weak_ptr<LineEvents> events, LineSettings settings)
    : seams_(std::move(seams)),
      engine_(std::move(engine)),
      heard_by_(std::move(events)),
      settings_(std::move(settings)),
      random_(settings_.boot),
      engine_beat_at_(seams_.clock->now()),
      stopped_(*seams_.clock) {}

template <class Call>
void PeerLines::tell(Call call) {
  asio::post(engine_, [events = heard_by_, it = std::move(call)]() mutable {
    if (const auto held = events.lock()) it(*held);
  });
}

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
  asio::co_spawn(seams_.executor, watch(), asio::detached);
}

// Decides whom we dial: before us in the list the first that live, or were not tried yet; where
// nobody before us lives, also some of those behind us that do not come by themselves.
void PeerLines::choose() {
  if (is_stopping_) return;
  std::size_t live = 0, untried = 0, failed = 0, missing = 0;
  const bool has_waited = seams_.clock->now() - members_at_ >= missing_after;
  std::size_t wanted_end = 0;
  for (std::size_t place = 0; place < order_.size(); ++place) {
    const std::size_t window = live == 0 ? heads_max + failed : heads_max;
    // Every beat of hundreds of nodes comes here: most end after the heads of the list.
    const bool is_enough = live + untried >= (place < place_ ? window : 1);
    if (is_enough && place >= wanted_end_) break;
    if (order_[place] == nullptr) continue;
    const std::string& name = order_[place]->first;
    Peer& peer = order_[place]->second;
    const bool was_wanted = peer.is_wanted;
    if (place < place_) {
      peer.is_wanted = live + untried < window;
      live += peer.is_wanted && peer.is_live;
      untried += peer.is_wanted && !peer.is_live && !peer.was_tried;
      failed += peer.is_wanted && !peer.is_live && peer.was_tried;
    } else {
      const bool has_ours = std::any_of(peer.lines.begin(), peer.lines.end(),
                                        [](const auto& line) { return line->is_ours; });
      const bool is_missing = has_waited && (!peer.is_live || has_ours);
      peer.is_wanted = live + untried == 0 && is_missing && missing < missing_dials_max;
      missing += peer.is_wanted;
    }
    if (was_wanted != peer.is_wanted) {
      peer.was_tried = false;
      tell([name, is_it = peer.is_wanted](LineEvents& events) { events.watched(name, is_it); });
    }
    if (was_wanted && !peer.is_wanted) {
      for (const auto& line : std::list(peer.lines)) {
        if (line->is_ours) end(line);
      }
    }
    if (peer.is_wanted) wanted_end = place + 1;
    if (!peer.is_wanted || peer.is_kept) continue;
    peer.is_kept = true;
    asio::co_spawn(seams_.executor, keep(name), asio::detached);
  }
  wanted_end_ = wanted_end;
  unreached_ = static_cast<Duration::rep>(failed);
}

bool PeerLines::is_wanted(const std::string& node) const {
  const auto peer = peers_.find(node);
  return !is_stopping_ && peer != peers_.end() && peer->second.is_wanted;
}

bool PeerLines::is_engine_well() const {
  return seams_.clock->now() - engine_beat_at_ < engine_silence_max;
}

void PeerLines::beat() {
  engine_beat_at_ = seams_.clock->now();
}

// Notices who is silent, and who is missing.
asio::awaitable<void> PeerLines::watch() {
  const auto self = shared_from_this();
  while (!is_stopping_) {
    const Time now = seams_.clock->now();
    Time next = now + settings_.beat;
    for (auto& [name, peer] : peers_) {
      if (!peer.is_live) continue;
      const Time lost_at = peer.heard_at + settings_.lost_after;
      if (now < lost_at) {
        next = std::min(next, lost_at);
        continue;
      }
      peer.is_live = false;
      log_info("job={} peer={} is silent", settings_.job, name);
      tell([lost = name](LineEvents& events) { events.lost(lost); });
    }
    choose();
    auto waited = co_await stopped_.wait_until(next);
    if (!waited) co_return;
  }
}

Task<void> PeerLines::pause(Duration longest) {
  const auto half = static_cast<std::uint64_t>(longest.count() / 2);
  const Duration time(static_cast<Duration::rep>(half + random_.below(half + 1)));
  CKPT_CO_TRY(const bool is_notified, co_await stopped_.wait_until(seams_.clock->after(time)));
  static_cast<void>(is_notified);
  co_return Status();
}

asio::awaitable<void> PeerLines::keep(std::string node) {
  const auto self = shared_from_this();
  Duration backoff = redial_after;
  LogLimit complaint(60.0);
  Errc complained_of{};  // Another reason is news: "refused" must not hide behind "not up yet".
  const auto nodes = static_cast<Duration::rep>(order_.size());
  auto paused = co_await pause(nodes * spread_per_node);
  while (paused && is_wanted(node)) {
    if (is_engine_well()) {
      DialTarget target{
          peers_.at(node).address, settings_.job,       self_, node, secret_, settings_.boot,
          wire::Purpose::control,  settings_.make_nonce};
      const std::string self_then = self_, address = target.address;
      std::uint64_t boot = 0;
      auto connection =
          co_await dial_peer(*seams_.network, *seams_.clock, std::move(target), &boot);
      if (!is_wanted(node)) break;
      if (self_ != self_then || peers_.at(node).address != address) continue;
      note_attempt(node, connection ? std::string() : connection.error().message());
      if (connection) {
        backoff = redial_after;
        co_await talk(std::move(*connection), node, boot, true);
      } else if (complaint.may_speak() || connection.error().code() != complained_of) {
        complained_of = connection.error().code();
        log_warning("job={} peer={} not reached, tried again: {}", settings_.job, node,
                    connection.error().message());
      }
    }
    if (!is_wanted(node)) break;
    paused = co_await pause(std::max(backoff, redial_per_node * unreached_));
    backoff = std::min(backoff * 2, redial_after_max);
  }
  const auto peer = peers_.find(node);
  if (peer == peers_.end()) co_return;
  peer->second.is_kept = false;
  choose();  // It may be wanted again.
}

void PeerLines::note_attempt(const std::string& node, const std::string& failure) {
  const auto peer = peers_.find(node);
  if (peer == peers_.end()) return;
  peer->second.was_tried = true;
  tell([node, failure](LineEvents& events) { events.attempted(node, failure); });
  choose();
}

void PeerLines::admit(std::shared_ptr<wire::Connection> connection, std::string node,
                      std::uint64_t boot) {
  asio::co_spawn(seams_.executor, talk(std::move(connection), std::move(node), boot, false),
                 asio::detached);
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
  asio::co_spawn(seams_.executor, speak(line), asio::detached);
  while (line->is_open) {
    const Time silence_end = seams_.clock->after(2 * settings_.lost_after);
    auto message = co_await wire::read_message(*line->connection, silence_end);
    if (!message && line->is_open)
      log_info("job={} peer={} line lost: {}", settings_.job, node, message.error().message());
    if (!message || !line->is_open || !hear(*line, std::move(*message))) break;
  }
  end(line);
}

// False: nothing of the kind is said on a line, or by this node.
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
