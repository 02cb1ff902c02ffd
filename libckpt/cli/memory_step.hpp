// MemoryStep: a step in the memory of a running job, read through this machine's daemon, as if it
// was a checkpoint on storage: `memory:gpt2`, `memory:gpt2/step-000000900`.
//
// Every Chunk is compared with its checksum when it arrives, as one from a disk is.
#pragma once

#include <ckpt/tensor.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/signal.hpp"
#include "cli/workplace.hpp"
#include "format/manifest.hpp"
#include "format/run_files.hpp"
#include "gather/shard_source.hpp"
#include "os/local_connection.hpp"
#include "wire/control_message.hpp"

namespace ckpt::cli {

inline constexpr std::string_view memory_prefix = "memory:";

struct MemoryPath {
  std::string job;
  std::optional<Step> step;  // None: the newest.
};
bool is_memory_path(std::string_view path);
// Errors: invalid_argument (says how one is written).
Result<MemoryPath> parse_memory_path(std::string_view path);
// Called by commands that read or change directories only. Errors: invalid_argument.
Status refuse_memory_path(std::string_view path, std::string_view what);
// Called where one directory is meant, as the job's option `dir` may name two.
Status refuse_two_places(std::string_view path, std::string_view what);

class MemoryStep final : public gather::ShardSource {
 public:
  // `runtime_dir`: the daemon's; empty: this user's. Errors: not_found (no daemon, no such job or
  // step), unavailable, version_mismatch.
  static Task<std::unique_ptr<MemoryStep>> open(Clock& clock, std::string runtime_dir,
                                                MemoryPath path);

  // As the job would publish it, without names of files.
  const std::shared_ptr<const format::Manifest>& manifest() const { return manifest_; }
  const format::Timelines& timelines() const { return timelines_; }
  const std::string& directory() const { return directory_; }  // The job's; empty: memory only.

  std::uint32_t shard_count() const override { return manifest_->world_size; }
  Task<gather::Excerpt> look(std::uint32_t rank, std::vector<std::string> names) override;
  Task<std::shared_ptr<const format::ShardRecord>> whole_record(std::uint32_t rank) override;
  Task<void> read(std::shared_ptr<const format::ShardRecord> record,
                  std::vector<std::size_t> chunks, gather::ChunkSink sink,
                  const storage::TransferHooks& hooks) override;

 private:
  MemoryStep(Clock& clock, os::LocalConnection connection);
  Task<void> begin(MemoryPath path);
  // One conversation at a time.
  Task<void> take_turn();
  Task<void> send(wire::control::Message message);
  Task<wire::control::Message> receive();
  Task<void> read_some(std::shared_ptr<const format::ShardRecord> record,
                       std::vector<std::size_t> chunks, const gather::ChunkSink& sink);

  Clock& clock_;
  os::LocalConnection connection_;
  Signal turn_ended_;
  bool is_talking_ = false;
  std::shared_ptr<const format::Manifest> manifest_;
  format::Timelines timelines_;
  std::string directory_;
};

}  // namespace ckpt::cli
