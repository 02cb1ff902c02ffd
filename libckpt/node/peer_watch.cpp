// PeerLines, the part that looks after the peers: whom to dial, who is silent, and whether this
// node itself stood still.
#include <algorithm>

#include "base/log.hpp"
#include "base/spawn.hpp"
#include "node/peer_lines.hpp"

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

}  // namespace

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
    run_detached(seams_.executor, keep(name));
  }
  wanted_end_ = wanted_end;
  unreached_ = static_cast<Duration::rep>(failed);
}

bool PeerLines::is_wanted(const std::string& node) const {
  const auto peer = peers_.find(node);
  return !is_stopping_ && peer != peers_.end() && peer->second.is_wanted;
}

// Notices who is silent, and who is missing.
asio::awaitable<void> PeerLines::watch() {
  const auto self = shared_from_this();
  watched_at_ = seams_.clock->now();
  while (!is_stopping_) {
    const Time now = seams_.clock->now();
    const Duration still = now - watched_at_;
    if (still >= still_max(settings_.lost_after, settings_.beat)) begin_anew(still);
    watched_at_ = now;
    tell([now](LineEvents& events) { events.watching(now); });
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

// The old lines hold messages that its peers sent while it was alive to them. Nothing of that may
// be taken for news.
void PeerLines::begin_anew(Duration stood_still) {
  log_warning(
      "job={} node={} stood still for {:.1f} s, and dials its peers anew: they may have taken it "
      "for lost",
      settings_.job, self_, std::chrono::duration<double>(stood_still).count());
  members_at_ = seams_.clock->now();
  tell([](LineEvents& events) { events.stood_still(); });
  for (auto& [name, peer] : peers_) {
    for (const auto& line : std::list(peer.lines)) end(line);
    peer.is_live = peer.was_tried = false;
    if (peer.is_wanted) tell([node = name](LineEvents& events) { events.watched(node, true); });
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

}  // namespace ckpt::node
