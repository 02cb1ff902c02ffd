// ExportWrite: carries out an ExportPlan: reads verified bytes, and writes the files.
//
// Memory: two buffers of `export_buffer_bytes`, and the Chunks that are being read.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "cli/export_plan.hpp"
#include "os/file_system.hpp"

namespace ckpt::cli {

// Large enough that a Chunk is seldom read twice.
inline constexpr std::uint64_t export_buffer_bytes = std::uint64_t{128} << 20;

enum class ExportKind : std::uint8_t {
  safetensors,
  torch,  // For torch.load.
  dcp,    // For torch.distributed.checkpoint.
};

struct ExportOrder {
  std::string directory;         // Where the files go.
  bool makes_directory = false;  // If it is not there.
  // Other files of a model (of safetensors), or of a checkpoint (of dcp) are in the way, too.
  bool is_whole_directory = false;
  ExportKind kind = ExportKind::safetensors;
  bool replaces = false;      // Else existing files are refused.
  std::uint64_t attempt = 0;  // Random: names the files that are being written.
  std::uint64_t buffer_bytes = export_buffer_bytes;
  // Asked when the directory is there, before anything is written: whether no other export is under
  // way in it on this machine, nor begins before `begin_writing` is called. Then hidden files that
  // a killed one left are removed, if nothing of that attempt has changed for
  // an hour: another machine may still write them. Empty: nobody knows.
  std::function<bool()> is_alone;
  std::chrono::system_clock::time_point now;  // For their age.
  std::function<void()> begin_writing;
  std::function<bool()> is_cancelled;          // Asked between buffers. Empty: never.
  std::function<void(std::uint64_t)> written;  // After so many bytes more. Empty: no call.
};

// `source` lives until the Task ends. Returns the paths of the files. Errors: invalid_argument (a
// file exists, or the directory does not), exhausted (no room), cancelled, io, and those of
// reading: they name the tensor. Unless the error is one of renaming, nothing new is there then.
Task<std::vector<std::string>> write_export(os::FileSystem& files, gather::ShardSource& source,
                                            ExportPlan plan, ExportOrder order);

}  // namespace ckpt::cli
