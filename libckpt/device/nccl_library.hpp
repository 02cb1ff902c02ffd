// NcclLibrary: the functions of NCCL that libckpt calls, found at run time.
//
// Nothing links against NCCL, and no header of it is needed: what is declared here has kept its
// form since NCCL 2.14, the first version with communicators that do not block.
//
// Threads: any. Lifetime: outlives all that uses it; the library itself stays loaded.
#pragma once

#include <ckpt/result.hpp>
#include <climits>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

struct CUstream_st;  // The driver's, as its headers declare it.

namespace ckpt::device {

using NcclComm = struct NcclCommunicator*;

// Not an enum class: any number may come from a newer library.
enum NcclResult : int { nccl_success = 0, nccl_in_progress = 7 };

enum NcclType : int { nccl_uint8 = 1 };

// Passed by value, so its size is part of the calling convention.
struct NcclUniqueId {
  char bytes[128];
};
static_assert(sizeof(NcclUniqueId) == 128);
static_assert(alignof(NcclUniqueId) == 1);

// The beginning of NCCL's own. A library copies `size` bytes of it and takes fields that came after
// `version` as not set. The last field would be padding; libraries from 2.17 on may read it.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21400;
  int blocking = 0;
  int group_of_blocks = INT_MIN;  // Not set.
};
static_assert(sizeof(NcclConfig) == 24);
static_assert(offsetof(NcclConfig, blocking) == 16);

struct NcclLibrary {
  // Loads CKPT_NCCL_LIBRARY; else the libnccl.so.2 that this process has loaded already (PyTorch
  // brings one); else `path`, unless it is empty; else libnccl.so.2 as the loader finds it. Errors:
  // unsupported (none, or one before 2.14; the text says which).
  static Result<std::unique_ptr<NcclLibrary>> open(const std::string& path);

  // Returns success, also while a call is in progress; or an error with `attempted` and NCCL's own
  // words. Errors: io.
  Status check(NcclResult result, std::string_view attempted) const;
  std::string version_text() const;

  std::string name;
  int version = 0;  // 22703 for NCCL 2.27.3.

  NcclResult (*read_version)(int* version) = nullptr;
  NcclResult (*make_id)(NcclUniqueId* id) = nullptr;
  NcclResult (*join)(NcclComm* comm, int ranks, NcclUniqueId id, int rank,
                     NcclConfig* config) = nullptr;
  NcclResult (*state)(NcclComm comm, NcclResult* state) = nullptr;
  NcclResult (*broadcast)(const void* source, void* target, std::size_t count, NcclType type,
                          int root, NcclComm comm, CUstream_st* stream) = nullptr;
  NcclResult (*begin_group)() = nullptr;
  NcclResult (*end_group)() = nullptr;
  NcclResult (*finalize)(NcclComm comm) = nullptr;
  NcclResult (*destroy)(NcclComm comm) = nullptr;
  NcclResult (*abort)(NcclComm comm) = nullptr;
  const char* (*error_string)(NcclResult result) = nullptr;
  const char* (*last_error)(NcclComm comm) = nullptr;

 private:
  Status find_functions(const class NcclSymbols& symbols);
};

}  // namespace ckpt::device
