#include "support/sim_network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "base/assert.hpp"
#include "base/random.hpp"
#include "base/signal.hpp"

namespace ckpt::test {

namespace {
constexpr std::size_t backlog_max = 128;  // Connections that nobody has accepted yet.
using Link = std::pair<std::string, std::string>;
}  // namespace

// Host: a node as long as it lives; what belonged to a killed one keeps its dead Host.
struct SimNetwork::Host {
  Host(std::string the_name, Clock& the_clock) : name(std::move(the_name)), clock(&the_clock) {}
  bool is_alive() const { return clock != nullptr; }

  std::string name;
  Clock* clock;  // Null once killed.
  std::vector<std::weak_ptr<End>> ends;
};

struct SimNetwork::World {
  World(std::uint64_t seed, SimNetworkOptions the_options) : random(seed), options(the_options) {}

  bool one_in(std::uint64_t odds) { return odds != 0 && random.one_in(odds); }
  Duration delay() {
    const auto spread = static_cast<std::uint64_t>((options.delay_max - options.delay_min).count());
    return options.delay_min + Duration(static_cast<std::int64_t>(random.below(spread + 1)));
  }
  bool is_cut(const std::string& from, const std::string& to) const {
    return cuts.contains(Link(from, to));
  }
  template <class Visit>
  void for_each_end(Visit visit) const {
    for (const auto& [name, host] : hosts) {
      const auto ends = host->ends;  // A visit may end some of them.
      for (const auto& weak : ends)
        if (const auto end = weak.lock()) visit(*end);
    }
  }

  Random random;
  SimNetworkOptions options;
  std::map<std::string, std::shared_ptr<Host>> hosts;
  std::map<std::string, Port*> ports;  // By address.
  std::set<Link> cuts;
  std::vector<StreamFault> faults;
  std::map<Link, std::uint64_t> delivered;
  std::uint16_t next_port = 20'000;
};

// End: one side of a stream, with the bytes that travel towards it.
class SimNetwork::End : public wire::Connection, public std::enable_shared_from_this<End> {
 public:
  End(std::shared_ptr<World> world, std::shared_ptr<Host> host, std::string remote)
      : world_(std::move(world)),
        host_(std::move(host)),
        remote_(std::move(remote)),
        readable_(*host_->clock),
        writable_(*host_->clock) {}
  ~End() override { End::close(); }

  static void join(const std::shared_ptr<End>& left, const std::shared_ptr<End>& right) {
    left->attach(right);
    right->attach(left);
  }

  Task<void> read(std::span<std::byte> bytes, Time deadline) override;
  Task<void> write(std::span<const std::byte> bytes, Time deadline) override;
  Task<void> write_file(os::FileSpan span, Time deadline) override {
    return write(span.bytes, deadline);
  }
  void close() override;
  std::string remote() const override { return remote_; }

  const std::string& node() const { return host_->name; }
  bool is_open() const { return !is_closed_ && !is_broken_; }
  const std::shared_ptr<Host>& peer_host() const { return peer_host_; }
  // The stream is gone, at this end or at both; what is in flight ends.
  void break_now();
  void break_both();
  // Bytes that waited for a partition to end go on.
  void resume() { arm(); }
  // The host died: nothing of it may be touched by a timer any more.
  void forget();
  void peer_killed();

 private:
  enum class PacketKind : std::uint8_t { bytes, end, reset };
  struct Packet {
    PacketKind kind = PacketKind::bytes;
    std::vector<std::byte> bytes;
    Time arrival{};
  };

  bool is_live() const { return host_->is_alive(); }
  void attach(const std::shared_ptr<End>& peer) {
    peer_ = peer;
    peer_host_ = peer->host_;
    auto& ends = host_->ends;
    std::erase_if(ends, [](const std::weak_ptr<End>& end) { return end.expired(); });
    ends.push_back(weak_from_this());
  }
  std::uint64_t room() const;
  void send(Packet packet);  // Into this end: called by the peer.
  void arm();
  void deliver_due();
  void deliver(Packet packet);
  void apply_faults(Packet& packet);
  std::size_t take(std::span<std::byte> target);
  Status state_of(std::string_view doing) const;
  Unexpected give_up(std::string_view doing);

  std::shared_ptr<World> world_;
  std::shared_ptr<Host> host_;
  std::string remote_;
  std::weak_ptr<End> peer_;
  std::shared_ptr<Host> peer_host_;

  std::deque<Packet> travelling_;  // Towards us.
  std::deque<std::byte> arrived_;
  std::uint64_t held_bytes_ = 0;      // Of both.
  std::uint64_t received_bytes_ = 0;  // Ever; the offset of the next byte.
  Time last_arrival_{};
  std::unique_ptr<Timer> timer_;
  Signal readable_;
  Signal writable_;
  std::shared_ptr<bool> is_reading_ = std::make_shared<bool>(false);
  std::shared_ptr<bool> is_writing_ = std::make_shared<bool>(false);
  bool peer_ended_ = false;
  bool is_broken_ = false;
  bool is_closed_ = false;
};

namespace {
// Marks an operation in flight; the flag is shared, since a kill destroys frames in any order.
class InFlight {
 public:
  explicit InFlight(std::shared_ptr<bool> flag) : flag_(std::move(flag)) {
    CKPT_ASSERT(!*flag_);
    *flag_ = true;
  }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;
  ~InFlight() { *flag_ = false; }

 private:
  std::shared_ptr<bool> flag_;
};
}  // namespace

Status SimNetwork::End::state_of(std::string_view doing) const {
  if (is_closed_) return fail(Errc::cancelled, fmt::format("{} {}: closed", doing, remote_));
  if (is_broken_)
    return fail(Errc::unavailable, fmt::format("{} {}: connection reset", doing, remote_),
                std::make_error_code(std::errc::connection_reset));
  if (peer_ended_ && peer_.expired() && doing == "write to")
    return fail(Errc::unavailable, fmt::format("write to {}: it closed the connection", remote_),
                std::make_error_code(std::errc::broken_pipe));
  return Status();
}

Unexpected SimNetwork::End::give_up(std::string_view doing) {
  close();
  return fail(Errc::unavailable, fmt::format("{} {}: the deadline passed", doing, remote_),
              std::make_error_code(std::errc::timed_out));
}

std::size_t SimNetwork::End::take(std::span<std::byte> target) {
  const std::size_t count = std::min(target.size(), arrived_.size());
  const auto end = arrived_.begin() + static_cast<std::ptrdiff_t>(count);
  std::copy(arrived_.begin(), end, target.begin());
  arrived_.erase(arrived_.begin(), end);
  held_bytes_ -= count;
  if (const auto peer = peer_.lock(); count > 0 && peer) peer->writable_.notify_all();
  return count;
}

Task<void> SimNetwork::End::read(std::span<std::byte> bytes, Time deadline) {
  const auto self = shared_from_this();
  const InFlight mark(is_reading_);
  std::size_t done = 0;
  for (;;) {
    CKPT_CO_CHECK(state_of("read from"));
    done += take(bytes.subspan(done));
    if (done == bytes.size()) co_return Status();
    if (peer_ended_) {
      close();
      co_return fail(Errc::unavailable,
                     fmt::format("read from {}: it closed the connection", remote_));
    }
    auto woken = co_await readable_.wait_until(deadline);
    if (woken && !*woken) co_return give_up("read from");
  }
}

Task<void> SimNetwork::End::write(std::span<const std::byte> bytes, Time deadline) {
  const auto self = shared_from_this();
  const InFlight mark(is_writing_);
  while (!bytes.empty()) {
    CKPT_CO_CHECK(state_of("write to"));
    if (const std::uint64_t most = std::min(room(), std::uint64_t{bytes.size()}); most > 0) {
      const std::size_t count = world_->random.below(most) + 1;
      const auto part = bytes.first(count);
      if (const auto peer = peer_.lock())
        peer->send(Packet{PacketKind::bytes, std::vector<std::byte>(part.begin(), part.end()), {}});
      bytes = bytes.subspan(count);
      continue;
    }
    auto woken = co_await writable_.wait_until(deadline);
    if (woken && !*woken) co_return give_up("write to");
  }
  co_return Status();
}

// The bytes that may be written now. A closed end swallows bytes until its end is seen here; a dead
// node's window fills up and then nothing moves.
std::uint64_t SimNetwork::End::room() const {
  const std::uint64_t piece_max = world_->options.piece_bytes_max;
  const auto peer = peer_.lock();
  if (!peer) return peer_host_->is_alive() ? piece_max : 0;
  const std::uint64_t window = world_->options.window_bytes;
  const std::uint64_t left = window - std::min(window, peer->held_bytes_);
  // As TCP: a window that opens by a few bytes is not worth a packet.
  return left < std::min(piece_max, window / 2) ? 0 : std::min(piece_max, left);
}

void SimNetwork::End::send(Packet packet) {
  held_bytes_ += packet.bytes.size();
  if (!is_live()) return;
  Duration transmission{0};
  if (world_->options.bytes_per_second != 0)
    transmission = Duration(static_cast<std::int64_t>(packet.bytes.size() * 1'000'000'000 /
                                                      world_->options.bytes_per_second));
  const Time now = host_->clock->now();
  last_arrival_ = std::max(last_arrival_ + transmission, now + transmission + world_->delay());
  packet.arrival = last_arrival_;
  travelling_.push_back(std::move(packet));
  if (travelling_.size() == 1) arm();
}

void SimNetwork::End::arm() {
  if (!is_live() || travelling_.empty() || timer_) return;
  timer_ = host_->clock->call_at(travelling_.front().arrival, [weak = weak_from_this()] {
    if (const auto end = weak.lock()) end->deliver_due();
  });
}

void SimNetwork::End::deliver_due() {
  timer_.reset();
  while (is_live() && !travelling_.empty() && travelling_.front().arrival <= host_->clock->now()) {
    if (world_->is_cut(peer_host_->name, node())) return;  // heal() goes on from here.
    Packet packet = std::move(travelling_.front());
    travelling_.pop_front();
    deliver(std::move(packet));
  }
  arm();
}

void SimNetwork::End::apply_faults(Packet& packet) {
  auto& faults = world_->faults;
  for (auto fault = faults.begin(); fault != faults.end();) {
    const bool is_here = fault->from == peer_host_->name && fault->to == node() &&
                         fault->offset >= received_bytes_ &&
                         fault->offset < received_bytes_ + packet.bytes.size();
    if (!is_here) {
      ++fault;
      continue;
    }
    const std::size_t at = fault->offset - received_bytes_;
    if (fault->kind == StreamFault::Kind::flip) {
      packet.bytes[at] ^= static_cast<std::byte>(1u << (fault->bit % 8));
    } else {
      held_bytes_ -= packet.bytes.size() - at;
      packet.bytes.resize(at);
      travelling_.push_front(Packet{PacketKind::reset, {}, host_->clock->now()});
    }
    fault = faults.erase(fault);
  }
  const bool may_flip =
      !packet.bytes.empty() && packet.bytes.size() >= world_->options.flip_bytes_min;
  if (may_flip && world_->one_in(world_->options.flip_one_in)) {
    const std::size_t at = world_->random.below(packet.bytes.size());
    packet.bytes[at] ^= static_cast<std::byte>(1u << world_->random.below(8));
  }
}

void SimNetwork::End::deliver(Packet packet) {
  if (packet.kind == PacketKind::reset || world_->one_in(world_->options.reset_one_in)) {
    break_both();
    return;
  }
  if (packet.kind == PacketKind::end) {
    peer_ended_ = true;
  } else if (is_closed_) {
    // Nobody reads here any more: the writer learns it by a reset.
    if (const auto peer = peer_.lock()) peer->send(Packet{PacketKind::reset, {}, {}});
    return;
  } else {
    apply_faults(packet);
    received_bytes_ += packet.bytes.size();
    world_->delivered[Link(peer_host_->name, node())] += packet.bytes.size();
    arrived_.insert(arrived_.end(), packet.bytes.begin(), packet.bytes.end());
  }
  readable_.notify_all();
}

void SimNetwork::End::break_now() {
  is_broken_ = true;
  travelling_.clear();
  held_bytes_ = 0;
  arrived_.clear();
  timer_.reset();
  readable_.notify_all();
  writable_.notify_all();
}

void SimNetwork::End::break_both() {
  break_now();
  if (const auto peer = peer_.lock(); peer && peer->is_live()) peer->break_now();
}

void SimNetwork::End::close() {
  if (is_closed_) return;
  is_closed_ = true;
  readable_.notify_all();
  writable_.notify_all();
  const auto peer = peer_.lock();
  if (!is_live() || is_broken_ || !peer) return;
  // As TCP: what was received and not read turns the end into a reset.
  const PacketKind kind = arrived_.empty() ? PacketKind::end : PacketKind::reset;
  peer->send(Packet{kind, {}, {}});
}

void SimNetwork::End::forget() {
  timer_.reset();
  travelling_.clear();
  is_closed_ = true;
}

void SimNetwork::End::peer_killed() {
  if (!is_live() || !is_open()) return;
  if (world_->one_in(world_->options.silence_one_in)) return;
  send(Packet{PacketKind::reset, {}, {}});
}

// Port: a listener, and those that connected and were not yet accepted.
class SimNetwork::Port : public std::enable_shared_from_this<Port> {
 public:
  Port(std::shared_ptr<World> world, std::shared_ptr<Host> host, std::string address)
      : world_(std::move(world)),
        host_(std::move(host)),
        address_(std::move(address)),
        arrivals_(*host_->clock) {
    world_->ports[address_] = this;
  }
  ~Port() { close(); }

  Task<std::shared_ptr<wire::Connection>> accept() {
    const auto self = shared_from_this();
    for (;;) {
      if (is_closed_) co_return fail(Errc::cancelled, "accept on " + address_ + ": closed");
      if (!waiting_.empty()) {
        std::shared_ptr<wire::Connection> next = std::move(waiting_.front());
        waiting_.pop_front();
        co_return next;
      }
      auto woken = co_await arrivals_.wait_until(no_deadline);
      static_cast<void>(woken);  // Its end is that of the port: looked at above.
    }
  }
  void close() {
    if (is_closed_) return;
    is_closed_ = true;
    const auto found = world_->ports.find(address_);
    if (found != world_->ports.end() && found->second == this) world_->ports.erase(found);
    waiting_.clear();
    arrivals_.close();
  }
  const std::string& address() const { return address_; }
  const std::shared_ptr<Host>& host() const { return host_; }
  bool push(std::shared_ptr<End> end) {
    if (waiting_.size() >= backlog_max) return false;
    waiting_.push_back(std::move(end));
    arrivals_.notify_all();
    return true;
  }

 private:
  std::shared_ptr<World> world_;
  std::shared_ptr<Host> host_;
  std::string address_;
  std::deque<std::shared_ptr<wire::Connection>> waiting_;
  Signal arrivals_;
  bool is_closed_ = false;
};

class SimNetwork::PortHandle : public wire::Listener {
 public:
  explicit PortHandle(std::shared_ptr<Port> port) : port_(std::move(port)) {}
  ~PortHandle() override { port_->close(); }

  Task<std::shared_ptr<wire::Connection>> accept() override { return port_->accept(); }
  void close() override { port_->close(); }
  std::string address() const override { return port_->address(); }

 private:
  std::shared_ptr<Port> port_;
};

class SimNetwork::Front : public wire::Network {
 public:
  Front(std::shared_ptr<World> world, std::shared_ptr<Host> host)
      : world_(std::move(world)), host_(std::move(host)) {}

  Task<std::unique_ptr<wire::Listener>> listen(std::string address, Time) override {
    const auto colon = address.rfind(':');
    if (colon == std::string::npos)
      co_return fail(Errc::invalid_argument, "listen on " + address + ": no port");
    std::string bound = address;
    if (address.substr(colon + 1) == "0")
      bound = address.substr(0, colon + 1) + std::to_string(world_->next_port++);
    if (world_->ports.contains(bound))
      co_return fail(Errc::unavailable, "listen on " + bound + ": the address is in use",
                     std::make_error_code(std::errc::address_in_use));
    auto port = std::make_shared<Port>(world_, host_, std::move(bound));
    co_return std::unique_ptr<wire::Listener>(new PortHandle(std::move(port)));
  }

  Task<std::shared_ptr<wire::Connection>> connect(std::string address, Time deadline) override {
    // Kept in the frame: the front may go while this waits.
    const auto world = world_;
    const auto host = host_;
    if (!host->is_alive()) co_return fail(Errc::cancelled, "connect: this node was killed");
    Clock& clock = *host->clock;
    const Time arrival = clock.after(world->delay() * 2);
    CKPT_CO_CHECK(co_await sleep_until(clock, std::min(arrival, deadline)));
    const auto found = world->ports.find(address);
    const bool is_known = found != world->ports.end();
    const bool is_silent = is_known && (world->is_cut(host->name, found->second->host()->name) ||
                                        world->is_cut(found->second->host()->name, host->name));
    if (arrival > deadline || is_silent || (!is_known && world->one_in(2))) {
      CKPT_CO_CHECK(co_await sleep_until(clock, deadline));
      co_return fail(Errc::unavailable, "connect to " + address + ": the deadline passed",
                     std::make_error_code(std::errc::timed_out));
    }
    if (!is_known)
      co_return fail(Errc::unavailable, "connect to " + address + ": connection refused",
                     std::make_error_code(std::errc::connection_refused));
    Port& port = *found->second;
    const auto near = std::make_shared<End>(world, host, address);
    const auto far = std::make_shared<End>(world, port.host(), host->name);
    End::join(near, far);
    if (!port.push(far))
      co_return fail(Errc::unavailable, "connect to " + address + ": too many wait there");
    co_return std::shared_ptr<wire::Connection>(near);
  }

 private:
  std::shared_ptr<World> world_;
  std::shared_ptr<Host> host_;
};

SimNetwork::SimNetwork(std::uint64_t seed, SimNetworkOptions options)
    : world_(std::make_shared<World>(seed, options)) {}
SimNetwork::~SimNetwork() {
  const auto hosts = world_->hosts;
  for (const auto& [name, host] : hosts) kill(name);
}

std::unique_ptr<wire::Network> SimNetwork::add_node(const std::string& name, Clock& clock) {
  if (world_->hosts.contains(name)) kill(name);
  const auto host = std::make_shared<Host>(name, clock);
  world_->hosts[name] = host;
  return std::make_unique<Front>(world_, host);
}

void SimNetwork::kill(const std::string& node) {
  const auto found = world_->hosts.find(node);
  if (found == world_->hosts.end()) return;
  const std::shared_ptr<Host> host = found->second;
  world_->hosts.erase(found);
  host->clock = nullptr;
  for (const auto& weak : host->ends)
    if (const auto end = weak.lock()) end->forget();
  std::erase_if(world_->ports, [&](const auto& port) { return port.second->host() == host; });
  world_->for_each_end([&](End& end) {
    if (end.peer_host() == host) end.peer_killed();
  });
}

void SimNetwork::partition_one_way(const std::string& from, const std::string& to) {
  world_->cuts.insert(Link(from, to));
}
void SimNetwork::partition(const std::string& left, const std::string& right) {
  partition_one_way(left, right);
  partition_one_way(right, left);
}

void SimNetwork::heal(const std::string& left, const std::string& right) {
  const bool was_cut =
      world_->cuts.erase(Link(left, right)) + world_->cuts.erase(Link(right, left));
  if (!was_cut) return;
  world_->for_each_end([&](End& end) {
    const bool is_left = end.node() == left && end.peer_host()->name == right;
    const bool is_right = end.node() == right && end.peer_host()->name == left;
    if (!is_left && !is_right) return;
    if (is_left && end.is_open() && world_->one_in(world_->options.break_at_heal_one_in)) {
      end.break_both();
    } else {
      end.resume();
    }
  });
}

void SimNetwork::heal_all() {
  const auto cuts = world_->cuts;
  for (const auto& [left, right] : cuts) heal(left, right);
}

void SimNetwork::set_options(SimNetworkOptions options) {
  world_->options = options;
}
void SimNetwork::inject(StreamFault fault) {
  world_->faults.push_back(std::move(fault));
}

void SimNetwork::reset_streams(const std::string& left, const std::string& right) {
  world_->for_each_end([&](End& end) {
    if (end.node() == left && end.peer_host()->name == right) end.break_both();
  });
}

std::uint64_t SimNetwork::bytes_delivered(const std::string& from, const std::string& to) const {
  const auto found = world_->delivered.find(Link(from, to));
  return found == world_->delivered.end() ? 0 : found->second;
}

std::size_t SimNetwork::open_streams(const std::string& node) const {
  std::size_t count = 0;
  world_->for_each_end([&](const End& end) {
    if (end.node() == node && end.is_open()) ++count;
  });
  return count;
}

}  // namespace ckpt::test
