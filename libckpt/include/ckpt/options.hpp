// Options: everything that can be tuned, with its unit, its default and its limit.
//
// Precedence: the code, then the environment (LIBCKPT_ + the option in capitals), then the file
// named by LIBCKPT_CONFIG. `Options::resolve` fills unset options from the last two; `ckpt doctor`
// prints each effective value and its origin.
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

// Interval: every n steps, or once per duration ("15min", "60s"), or never. Zero of both is never,
// too, but refused for `save_mem_interval`: one that forgot to set it would have no checkpoints.
struct Interval {
  std::uint64_t steps = 0;
  std::chrono::milliseconds time{0};

  static constexpr Interval never() { return {0, std::chrono::milliseconds(-2)}; }
  bool is_never() const { return steps == 0 && (time.count() == 0 || time == never().time); }
  // Not set: Options::resolve() replaces it by the default.
  static constexpr Interval automatic() { return {0, std::chrono::milliseconds(-1)}; }
  bool is_automatic() const { return time.count() == -1; }
  // Errors: invalid_argument ("15 parsecs" is not an interval).
  CKPT_EXPORT static Result<Interval> parse(std::string_view text);
};

// Node: one machine of the job. Nodes of one failure domain are expected to die together.
struct Node {
  std::string name;            // Unique in the job; a replacement gets a new one.
  std::string failure_domain;  // Default: the name.
  std::string address;         // "host:port" of its daemon.

  // "A@10.0.0.1:7711/rack-3". Errors: invalid_argument.
  CKPT_EXPORT static Result<Node> parse(std::string_view text);
};

// KeepInterval: keeps for good the steps up to `until` that `every` divides.
struct KeepInterval {
  std::uint64_t every = 0;
  std::optional<std::uint64_t> until;  // None: all further steps; only for the last interval.
  bool operator==(const KeepInterval&) const = default;
};

// Best: which value of a metric is better.
enum class Best : std::uint8_t { min, max };

// Yield: whether the daemon's background work slows down when it makes training steps longer.
// "auto" judges by the step times that the trainer measures between its saves; "off" never slows
// down.
enum class Yield : std::uint8_t { off, automatic };

// GpuGap: the work between two batches of copies from a GPU, in which the trainer's own copies get
// through. A memset is a kernel, and may wait for the trainer's kernels; the others are none.
// "auto" measures them when the GPU is first used, in a tenth of a second, and keeps the answer.
enum class GpuGap : std::uint8_t { none, memset, write_value, copy, automatic };

// GpuGather: whether a kernel of ours copies a GPU's tensors below 64 KiB into the Slot. "auto":
// where a capture has 64 of them or more, and CUDA_DEVICE_MAX_CONNECTIONS is not 1. "on": for any
// number. It takes some of the GPU's cores for as long as it runs; else the GPU's copy engine
// copies these, too.
enum class GpuGather : std::uint8_t { off, on, automatic };

struct Options {
  // Identity.
  std::string job;  // Required: 1 to 128 of [A-Za-z0-9._-].
  std::string dir;  // Storage: a path, s3://bucket/run, or two: "/nvme, s3://b/run every 10".
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::vector<Node> nodes;  // All nodes of the job, the same list on every rank; empty: one node.
  std::string node;         // Our name in `nodes`; empty: the only one, or the host name.
  std::uint64_t incarnation = 0;  // Version of `nodes`; a lower one than before is refused.

  // Intervals.
  Interval save_mem_interval{1, {}};  // never(): only save() captures.
  // Default: every 30 min with a dir, else never. The newest step is also stored at the end.
  Interval save_storage_interval = Interval::automatic();
  std::uint32_t max_ckpt_num = 0;  // Checkpoints kept on storage; 0: all.
  // Besides these: steps that are never deleted, and the best ones by a metric of set_metric().
  std::vector<KeepInterval> keep_every;  // The first interval counts whose `until` is not passed.
  std::uint32_t keep_best = 0;           // How many.
  std::string best_metric;               // Its name: "loss".
  Best best_mode = Best::min;
  // "zstd", or "zstd:3" with a level from 1 to 19: checkpoints are stored compressed, by the
  // daemon. Empty or "none": they are plain files.
  std::string compression;

  // Resources.
  // Bytes that the daemon may use on this node; 0: half of the available memory.
  std::uint64_t memory_budget = 0;
  // Copies in different failure domains, the node's own included; 1: no copies on peers.
  std::uint32_t replicas = 2;
  std::uint32_t own_slots = 0;            // Per rank; 0: three with a dir, else two.
  std::uint64_t blob_capacity = 1 << 20;  // Bytes set aside for add_blob and set_blob.
  std::uint32_t copy_threads = 2;         // Host tensors; 1 to 64.
  // Bytes per second that a capture copies from each GPU, so that the trainer's own copies get
  // through; guard() lifts the limit. 0: no limit.
  std::uint64_t gpu_copy_rate = 0;
  GpuGap gpu_gap = GpuGap::automatic;
  GpuGather gpu_gather = GpuGather::automatic;
  // Captures of GPUs are compared with fingerprints that the GPU takes before the copies.
  bool gpu_check = false;

  // Limits of the daemon's background work on this node. They do not apply to restores, nor while
  // the job closes, the daemon stops or no trainer is attached.
  std::uint64_t flush_rate = 0;    // Bytes per second to storage. 0: no limit.
  std::uint64_t replica_rate = 0;  // Bytes per second to peers. 0: no limit.
  // Unchanged bytes (frozen weights, beside adapters) are not copied again from a GPU, sent to
  // peers, or written to XFS or Btrfs. Bytes are compared, or fingerprints of 128 bits.
  bool skip_unchanged = false;
  Yield yield = Yield::automatic;  // Whether both slow down further for training.

  // The daemon and the network.
  std::string runtime_dir;  // Socket, ready-file and log of the daemon; empty: one per user.
  std::string daemon_path;  // The ckptd to start when none runs; empty: beside the library.
  bool embedded = false;    // Runs the daemon's engine inside this process.
  std::string secret_file;  // Shared by the job's nodes; without it there are no peer copies.
  std::string interface;    // The address to listen on; empty: that of this node in `nodes`.
  std::uint16_t port = 0;   // For a daemon that we start; 0: that of this node in `nodes`.

  // Behaviour.
  std::string log_file_path;  // Empty: standard error for the trainer, runtime_dir for the daemon.
  bool disable = false;       // Calls do nothing and succeed; restores return not_found.
  bool checksum_in_copy = true;  // False: the daemon computes the checksums after the copy.
  // Ranks that divide the capture of equal tensors compare theirs: all of them at a save to storage
  // that comes after some number of steps, else a sample at each save. Costs the time of reading
  // them.
  bool compare_copies = true;
  std::chrono::milliseconds open_deadline{10'000};
  std::chrono::milliseconds restore_deadline{120'000};

  // Sets one option from text, written as in the environment or the file; for other languages.
  // Errors: invalid_argument (names the option and the value).
  CKPT_EXPORT Status set(std::string_view name, std::string_view text);

  // Fills unset options from the environment and the configuration file, and checks every value.
  // Errors: invalid_argument (names the option and the value), io (the file cannot be read).
  CKPT_EXPORT static Result<Options> resolve(Options given);
};

// OptionOrigin: an effective value and its origin; for `ckpt doctor`.
struct OptionOrigin {
  std::string name;
  std::string value;
  std::string origin;  // "default", "code", "environment LIBCKPT_JOB", "file /etc/libckpt.conf"
};
CKPT_EXPORT Result<std::vector<OptionOrigin>> explain(const Options& given);

}  // namespace ckpt
