// Options: everything that can be tuned, with its unit, its default and its limit.
//
// Precedence: what the code sets, over the environment (LIBCKPT_ + the option in capitals), over
// the file named by LIBCKPT_CONFIG. `Options::resolve` applies the two lower levels to what is
// unset; `ckpt doctor` prints the effective values and where each came from.
#pragma once

#include <chrono>
#include <ckpt/export.hpp>
#include <ckpt/result.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt {

// Interval: every n steps, or every so much time ("15min", "60s"), or never (both zero).
struct Interval {
  std::uint64_t steps = 0;
  std::chrono::milliseconds time{0};

  bool is_never() const { return steps == 0 && time.count() == 0; }
  // Not chosen: Options::resolve() puts the default in its place.
  static constexpr Interval automatic() { return {0, std::chrono::milliseconds(-1)}; }
  bool is_automatic() const { return time.count() == -1; }
  // Errors: invalid_argument ("15 parsecs" is no interval).
  CKPT_EXPORT static Result<Interval> parse(std::string_view text);
};

// Node: one machine of the job. Nodes of one failure domain are expected to die together.
struct Node {
  std::string name;            // Unique in the job; survives no replacement.
  std::string failure_domain;  // Default: the name.
  std::string address;         // "host:port" of its daemon.

  // "A@10.0.0.1:7711/rack-3". Errors: invalid_argument.
  CKPT_EXPORT static Result<Node> parse(std::string_view text);
};

// Whether what the daemon does in the background slows down while training steps last longer
// beside it: by the step times that the trainer measures between its saves ("auto"), or never
// ("off").
enum class Yield : std::uint8_t { off, automatic };

struct Options {
  // Who we are.
  std::string job;  // Required: 1 to 128 of [A-Za-z0-9._-].
  std::string dir;  // Checkpoints on storage; empty: memory only.
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::vector<Node> nodes;  // All nodes of the job, the same list on every rank; empty: one node.
  std::string node;         // Which of them this is; empty: the only one, or the host name.
  std::uint64_t incarnation = 0;  // Of the list: a lower one than seen before is refused.

  // When.
  Interval save_mem_interval{1, {}};
  // With a dir every 30 min, and never without one; the newest step also at the end.
  Interval save_storage_interval = Interval::automatic();
  std::uint32_t max_ckpt_num = 0;  // Kept on storage; 0: all.

  // How much.
  std::uint64_t memory_budget =
      0;  // Bytes the daemon may use on this node; 0: half of what is available.
  std::uint32_t replicas =
      2;  // Copies in different failure domains, the own one included; 1: none.
  std::uint32_t own_slots = 0;            // 0: three with a storage directory, else two.
  std::uint64_t blob_capacity = 1 << 20;  // Bytes set aside for add_blob and set_blob.
  std::uint32_t copy_threads = 2;         // Host tensors; 1 to 64.
  // Bytes per second that a capture takes of each GPU's link, so that the trainer's own copies get
  // through; guard() lifts it. 0: no limit.
  std::uint64_t gpu_copy_rate = 0;

  // Of what the daemon does beside training on this node. No limit holds once the job is being
  // closed, its daemon stopped, or no trainer there; nor for a restore.
  std::uint64_t flush_rate = 0;    // Bytes per second to storage. 0: no limit.
  std::uint64_t replica_rate = 0;  // Bytes per second to peers. 0: no limit.
  Yield yield = Yield::automatic;  // Whether both go below that for the sake of training.

  // With whom.
  std::string runtime_dir;  // Socket, ready-file and log of the daemon; empty: by user.
  std::string daemon_path;  // The ckptd to start when none runs; empty: beside the library.
  bool embedded = false;    // The daemon's engine inside this process.
  std::string secret_file;  // Shared by the job's nodes; without it there are no peer copies.
  std::string interface;    // The address to listen on; empty: that of this node in `nodes`.
  std::uint16_t port = 0;   // Of the daemon this library starts; 0: that of this node in `nodes`.

  // Behaviour.
  std::string log_file_path;  // Empty: standard error for the trainer, runtime_dir for the daemon.
  bool disable = false;       // Calls do nothing and succeed; restores: not_found.
  bool checksum_in_copy = true;  // False: the daemon computes the checksums after the copy.
  std::chrono::milliseconds open_deadline{10'000};
  std::chrono::milliseconds restore_deadline{120'000};

  // One option from text, in the words of the environment and of the file; for other languages.
  // Errors: invalid_argument (names the option and the value).
  CKPT_EXPORT Status set(std::string_view name, std::string_view text);

  // Fills what is unset from the environment and the configuration file, and checks every value.
  // Errors: invalid_argument (names the option and the value), io (the file cannot be read).
  CKPT_EXPORT static Result<Options> resolve(Options given);
};

// Where a value of the effective options came from; for `ckpt doctor`.
struct OptionOrigin {
  std::string name;
  std::string value;
  std::string origin;  // "default", "code", "environment LIBCKPT_JOB", "file /etc/libckpt.conf"
};
CKPT_EXPORT Result<std::vector<OptionOrigin>> explain(const Options& given);

}  // namespace ckpt
