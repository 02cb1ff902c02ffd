// DaemonLink: the connection to the engine in ckptd, over its socket. Survives the daemon's death.
//
//   connect (start) -> hello -> attach -> send what is remembered -> serve --lost--> connect ...
//
// The stream ends with the daemon. Training goes on meanwhile, without Slots until the next daemon
// grants some. The layout, a requested start and a close are sent again. A session that had begun
// attaches as its continuation, on the same timeline.
//
// Threads:  everything but the EngineSide's calls runs on ckpt-snap.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/signal.hpp"
#include "client/daemon_start.hpp"
#include "client/outgoing_queue.hpp"
#include "client/reconnect_pause.hpp"
#include "client/remembered.hpp"
#include "client/session_link.hpp"
#include "client/silence_watch.hpp"
#include "client/snap_thread.hpp"
#include "os/mapped_segments.hpp"
#include "os/shared_memory.hpp"

namespace ckpt::client {

class DaemonLink final : public EngineSide {
 public:
  DaemonLink(const Options& options, os::RuntimeDirectory directory, control::Attach attach,
             std::shared_ptr<LinkState> state, Deadline open_deadline);
  ~DaemonLink() override;

  void start();
  void post(control::Call call) override;
  void keep_mapped_by(std::shared_ptr<device::MemoryPins> pins) override;
  void let_go(MappedSlot slot) override;

 private:
  struct IncomingSlot {  // Until all its segments have come.
    std::uint64_t generation = 0;
    std::uint32_t count_of_all = 0;
    std::vector<os::Segment> segments;
  };

  DetachedTask run();
  DetachedTask send_all(std::uint64_t connection_number);
  Task<void> attach_once();
  Task<control::Message> receive(Time deadline);
  // Runs until the connection ends, and returns that as an error.
  Task<void> serve();
  void lose(const Error& error);
  void report_silence(bool is_silent);
  void say_goodbye();
  void make_way();

  void carry_out(control::Call call);
  void enqueue(control::Message message);
  void hang_up(std::string why);  // The daemon may be alive.

  Status take(control::Message message, std::vector<os::Fd> descriptors);
  Status take(control::SlotsReady ready);
  void note(const control::Event& event);
  Status take_segments(const control::SlotSegments& segments, std::vector<os::Fd> fds);
  Status map_pages(std::uint32_t slot);

  std::shared_ptr<LinkState> state_;
  control::Attach attach_;
  SnapThread thread_;
  std::unique_ptr<Clock> clock_;
  const std::string daemon_log_;
  DaemonStart start_;
  Time open_deadline_;
  int prefault_threads_;

  os::LocalConnection connection_;
  std::uint64_t connection_number_ = 0;
  std::unique_ptr<Timer> goodbye_alarm_;
  bool is_attached_ = false;
  bool was_attached_ = false;
  bool is_stopping_ = false;
  bool is_fenced_ = false;
  bool has_left_ = false;  // We are fenced, and said goodbye before our end.
  std::string hung_up_;    // The reason; empty: we did not.
  LogLimit hanging_up_{60.0};
  OutgoingQueue outgoing_;
  Signal outgoing_changed_;
  SilenceWatch silence_;
  std::map<std::uint32_t, IncomingSlot> incoming_;
  std::shared_ptr<device::MemoryPins> pins_;
  std::vector<MappedSlot> mapped_;  // By Slot.
  // By Slot, those whose pages are not in our page table yet.
  std::map<std::uint32_t, std::weak_ptr<os::MappedSegments>> unmapped_;
  bool has_restored_ = false;  // The newest timeline began with a restore.

  Remembered remembered_;  // Sent to the next daemon.
};

}  // namespace ckpt::client
