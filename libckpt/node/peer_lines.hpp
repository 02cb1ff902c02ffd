// PeerLines: the control connections of one job, on a thread of their own where there is one.
//
// A node dials the lowest nodes of the list that live, as far as they stand before it: one of them
// coordinates, the next ones succeed it. Both ends use the connection. While nothing changes, a
// line carries one small beat per interval and direction. It names, by a number, what its sender
// states and what it has taken of the receiver's statement; a receiver that lacks the newest one
// gets it again.
//
//   Peers (the engine's thread)                   PeerLines (the lines' thread)
//     state, take, ask, answer, beat   --post-->    one coroutine reads each line, one writes it
//     heard, lost, received, attempted <--post--
//
// An engine that is busy keeps its lines. One that has not called beat() for `engine_silence_max`
// hangs: its lines are closed, and its peers take it for lost.
//
// Lines that did not run for `still_max` begin anew, and notify the engine: the process was
// stopped, or its machine. Messages that came since were sent while this node was alive to the
// others.
//
// Threads: all functions run on the lines' executor.
#pragma once

#include <boost/asio/post.hpp>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "base/signal.hpp"
#include "node/dial.hpp"
#include "node/engine_options.hpp"
#include "wire/message.hpp"

namespace ckpt::node {

// First dials are spread over so much for each node of the list: some hundred in a second.
constexpr Duration spread_per_node = std::chrono::milliseconds(2);

using SharedBytes = std::shared_ptr<const std::vector<std::byte>>;

// Statement: the whole state that this node sends others; a newer one takes its place.
struct Statement {
  wire::FrameKind kind = wire::FrameKind::report;  // Or decree.
  std::uint64_t number = 0;                        // 0: nothing is stated.
  std::string to;                                  // A node; empty: all.
  SharedBytes body;
  std::optional<Digest> start;  // Sent before the body, once on each line.
  SharedBytes start_body;
  bool is_for(const std::string& node) const { return number != 0 && (to.empty() || to == node); }
};

// Taken: the statement of another node that our engine has.
struct Taken {
  wire::FrameKind kind = wire::FrameKind::report;
  std::uint64_t boot = 0;
  std::uint64_t number = 0;
};

struct LineSettings {
  std::string job;
  std::uint64_t boot = 0;
  wire::MakeNonce make_nonce;
  Duration beat{};
  Duration lost_after{};
};

// How long the lines may stand still before their peers take this node for lost. The last beat was
// sent an interval before that, at most.
inline Duration still_max(Duration lost_after, Duration beat) {
  return lost_after - beat;
}

// LineEvents: the way back from the lines, on the engine's thread. Peers implements it.
class LineEvents {
 public:
  // The node is alive, with this boot; `stated` is the number of its newest statement to us.
  virtual void heard(const std::string& node, std::uint64_t boot, std::uint64_t stated) = 0;
  virtual void lost(const std::string& node) = 0;
  virtual void watched(const std::string& node, bool is_it) = 0;  // Whether we dial it.
  // Without a failure: it was reached.
  virtual void attempted(const std::string& node, const std::string& failure) = 0;
  virtual void received(const std::string& node, wire::Message message) = 0;
  virtual void watching(Time at) = 0;  // The lines run: once in each interval.
  virtual void stood_still() = 0;      // They did not for too long. Nobody is heard.

 protected:
  ~LineEvents() = default;
};

class PeerLines : public std::enable_shared_from_this<PeerLines> {
 public:
  PeerLines(LineSeams seams, asio::any_io_executor engine, std::weak_ptr<LineEvents> events,
            LineSettings settings);

  void set_members(std::vector<Node> nodes, std::string self, std::string secret);
  void state(Statement statement);
  void take(const std::string& node, const Taken& taken);
  void ask(const std::string& node, const Digest& start);
  void answer(const std::string& node, SharedBytes start);
  void drop(const std::string& node);  // It sent what cannot be read.
  void beat();                         // The engine runs.
  void admit(std::shared_ptr<wire::Connection> connection, std::string node, std::uint64_t boot);
  void stop();

 private:
  struct Line {
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
  struct Peer {
    std::string address;
    bool is_wanted = false;  // We dial it; is_kept: the coroutine runs.
    bool is_kept = false;
    bool was_tried = false;
    bool is_live = false;
    Time heard_at{};
    std::uint64_t boot = 0;    // That of its lines: they are ended when it speaks with another one.
    bool is_boot_told = true;  // The engine knows of this boot; it may state nothing to us.
    std::uint64_t stated = 0;  // The number of its newest statement to us.
    wire::FrameKind stated_kind = wire::FrameKind::report;
    std::uint64_t taken = 0;  // As our engine has it.
    std::list<std::shared_ptr<Line>> lines;
  };

  using Entry = std::map<std::string, Peer>::value_type;

  void choose();
  bool is_wanted(const std::string& node) const;
  bool is_engine_well() const;
  asio::awaitable<void> watch();
  void begin_anew(Duration stood_still);
  asio::awaitable<void> keep(std::string node);
  Task<void> pause(Duration longest);
  void note_attempt(const std::string& node, const std::string& failure);
  asio::awaitable<void> talk(std::shared_ptr<wire::Connection> connection, std::string node,
                             std::uint64_t boot, bool is_ours);
  void note_boot(Peer& peer, std::uint64_t boot);
  bool hear(Line& line, wire::Message message);
  asio::awaitable<void> speak(std::shared_ptr<Line> line);
  Task<bool> say_next(std::shared_ptr<Line> line);
  std::optional<wire::Message> next_message(Line& line);
  static void send_on(Line& line, wire::Message message);
  void end(const std::shared_ptr<Line>& line);
  template <class Call>
  void tell(Call call) {
    asio::post(engine_, [events = heard_by_, it = std::move(call)]() mutable {
      if (const auto held = events.lock()) it(*held);
    });
  }

  LineSeams seams_;
  asio::any_io_executor engine_;
  std::weak_ptr<LineEvents> heard_by_;
  LineSettings settings_;
  Random random_;
  std::string self_, secret_;
  std::size_t place_ = 0;
  Duration::rep unreached_ = 0;  // Nodes before us that are dialed in vain.
  std::map<std::string, Peer> peers_;
  std::vector<Entry*> order_;   // As in the list; null: this node.
  std::size_t wanted_end_ = 0;  // From this place on in the list, no node is wanted.
  Statement statement_;
  Time members_at_{}, engine_beat_at_{}, watched_at_{};
  Signal stopped_;  // Only closed.
  bool is_watching_ = false, is_stopping_ = false;
};

}  // namespace ckpt::node
