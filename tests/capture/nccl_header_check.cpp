// Goal:   what device/nccl_library.hpp declares of NCCL by hand is what NCCL's own header says.
// Method: compiled beside that header, and not linked; tests/python/test_nccl_wheel.py does it,
// with
//         empty headers in the place of the toolkit's.
#include <cstddef>
#include <type_traits>

using cudaStream_t = struct CUstream_st*;

#include <nccl.h>

#include "device/nccl_library.hpp"

namespace ckpt::device {

namespace {

// Passed in the same way: the names of types do not matter, and neither do those of enumerations.
template <class Ours, class Theirs>
constexpr bool is_alike = sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
                          std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
                          std::is_class_v<Ours> == std::is_class_v<Theirs>;

template <class Our, class Their, class... Ours, class... Theirs>
constexpr bool are_alike(Our (*)(Ours...), Their (*)(Theirs...)) {
  static_assert(sizeof...(Ours) == sizeof...(Theirs));
  return is_alike<Our, Their> && (is_alike<Ours, Theirs> && ...);
}

constexpr NcclLibrary ours;
#define CKPT_ALIKE(our, their) static_assert(are_alike(decltype(ours.our){}, &their))

CKPT_ALIKE(read_version, ncclGetVersion);
CKPT_ALIKE(make_id, ncclGetUniqueId);
CKPT_ALIKE(join, ncclCommInitRankConfig);
CKPT_ALIKE(state, ncclCommGetAsyncError);
CKPT_ALIKE(broadcast, ncclBroadcast);
CKPT_ALIKE(begin_group, ncclGroupStart);
CKPT_ALIKE(end_group, ncclGroupEnd);
CKPT_ALIKE(finalize, ncclCommFinalize);
CKPT_ALIKE(destroy, ncclCommDestroy);
CKPT_ALIKE(abort, ncclCommAbort);
CKPT_ALIKE(error_string, ncclGetErrorString);
CKPT_ALIKE(last_error, ncclGetLastError);

static_assert(int{nccl_success} == int{ncclSuccess});
static_assert(int{nccl_in_progress} == int{ncclInProgress});
static_assert(int{nccl_uint8} == int{ncclUint8});

// The beginning of NCCL's own.
static_assert(offsetof(NcclConfig, size) == offsetof(ncclConfig_t, size));
static_assert(offsetof(NcclConfig, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(NcclConfig, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(NcclConfig, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(NcclConfig, group_of_blocks) == offsetof(ncclConfig_t, cgaClusterSize));
static_assert(NcclConfig{}.magic == NCCL_API_MAGIC);
static_assert(NcclConfig{}.group_of_blocks == NCCL_CONFIG_UNDEF_INT);
static_assert(NcclConfig{}.version < NCCL_VERSION_CODE);

}  // namespace

}  // namespace ckpt::device
