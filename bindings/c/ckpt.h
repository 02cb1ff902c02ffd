/* ckpt.h: the stable C ABI of libckpt, for trainers that are not written in C++.
 *
 *   ckpt_options_new, ckpt_options_set*, ckpt_open -> ckpt_add* -> ckpt_restore
 *     -> (ckpt_save_if_needed -> ckpt_guard)* -> ckpt_close
 *
 * Every function that can fail returns CKPT_OK or one of the codes below, and leaves a sentence for
 * ckpt_last_error(). No function throws, and every pointer is checked. Structures that may grow
 * begin with their size, set by the caller: a newer library fills no more than that.
 *
 * Threads:  one at a time for each handle. Lifetime: tensors and blobs keep their address until
 * ckpt_close() or ckpt_free(). Strings are copied unless said otherwise.
 */
#ifndef CKPT_H
#define CKPT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CKPT_API __attribute__((visibility("default")))

/* The reaction that a failure asks for; numbers never change. */
typedef enum ckpt_code {
  CKPT_OK = 0,
  CKPT_INVALID_ARGUMENT = 1, /* The caller must change the request. */
  CKPT_NOT_FOUND = 2,        /* There is no such thing; often the normal first start. */
  CKPT_CORRUPTION = 3,       /* Bytes failed verification. */
  CKPT_IO = 4,               /* Storage, network or kernel refused. */
  CKPT_UNAVAILABLE = 5,      /* Not now: retry later. */
  CKPT_EXHAUSTED = 6,        /* A limit was reached. */
  CKPT_CANCELLED = 7,        /* Ended from our side. */
  CKPT_UNSUPPORTED = 8,      /* This machine or this version cannot do it. */
  CKPT_VERSION_MISMATCH = 9, /* The other side, or the file, speaks another version. */
  CKPT_INTERNAL = 100        /* An exception inside: a bug of libckpt. */
} ckpt_code;

/* Element types; the comment is the name that safetensors files carry. */
typedef enum ckpt_dtype {
  CKPT_DTYPE_BOOLEAN = 0, /* BOOL */
  CKPT_DTYPE_U8 = 1,      /* U8 */
  CKPT_DTYPE_I8 = 2,      /* I8 */
  CKPT_DTYPE_F8_E4M3 = 3, /* F8_E4M3 */
  CKPT_DTYPE_F8_E5M2 = 4, /* F8_E5M2 */
  CKPT_DTYPE_F8_E8M0 = 5, /* F8_E8M0 */
  CKPT_DTYPE_U16 = 6,     /* U16 */
  CKPT_DTYPE_I16 = 7,     /* I16 */
  CKPT_DTYPE_F16 = 8,     /* F16 */
  CKPT_DTYPE_BF16 = 9,    /* BF16 */
  CKPT_DTYPE_U32 = 10,    /* U32 */
  CKPT_DTYPE_I32 = 11,    /* I32 */
  CKPT_DTYPE_F32 = 12,    /* F32 */
  CKPT_DTYPE_U64 = 13,    /* U64 */
  CKPT_DTYPE_I64 = 14,    /* I64 */
  CKPT_DTYPE_F64 = 15,    /* F64 */
  CKPT_DTYPE_C64 = 16     /* C64 */
} ckpt_dtype;

/* Flags of ckpt_add. Host memory unless CKPT_TENSOR_CUDA is given. */
#define CKPT_TENSOR_GUARDED 1u /* Changes only between ckpt_guard and the next save. */
#define CKPT_TENSOR_CUDA 2u    /* Memory of the GPU whose index stands in bits 8 to 15. */

typedef enum ckpt_outcome {
  CKPT_NO_OUTCOME = -1,         /* The save returned an error. */
  CKPT_NOT_DUE = 0,             /* The policy did not ask for this step. */
  CKPT_STARTED = 1,             /* The capture runs. */
  CKPT_SKIPPED_NO_SLOT = 2,     /* All Slots are busy: counted, training goes on. */
  CKPT_SKIPPED_UNAVAILABLE = 3, /* The daemon is away, or still makes the Slots of a new layout. */
  CKPT_DISABLED = 4,            /* LIBCKPT_DISABLE=1. */
  CKPT_SKIPPED_BY_AGREEMENT = 5 /* All ranks capture a later step. */
} ckpt_outcome;

typedef enum ckpt_level {
  CKPT_CAPTURED = 1,   /* Survives the trainer. */
  CKPT_REPLICATED = 2, /* The required copies are verified in other failure domains. */
  CKPT_COMMITTED = 3,  /* Recovery may choose the step. */
  CKPT_DURABLE = 4     /* Published on storage. */
} ckpt_level;

typedef enum ckpt_source {
  CKPT_OWN_MEMORY = 0,
  CKPT_PEER_MEMORY = 1,
  CKPT_STORAGE = 2
} ckpt_source;
/* Where a restore may take the step from: the memory of the job's nodes, and its directory. */
typedef enum ckpt_source_choice {
  CKPT_ANY_SOURCE = 0,
  CKPT_MEMORY_ONLY = 1,
  CKPT_STORAGE_ONLY = 2
} ckpt_source_choice;

typedef struct ckpt_options ckpt_options; /* Opaque. */
typedef struct ckpt_handle ckpt_handle;   /* Opaque: a Checkpointer. */

typedef struct ckpt_restored {
  size_t size; /* sizeof(ckpt_restored), set by the caller. */
  uint64_t step;
  uint64_t timeline;
  uint64_t bytes;
  double seconds;
  int32_t source; /* ckpt_source */
  int32_t reserved;
  char source_name[128]; /* "own memory", "node B"; cut where too long. */
  uint64_t newest_seen;  /* The newest step that training is known to have reached before: those
                          * after `step` are lost. CKPT_NO_STEP: not known. */
  uint64_t bytes_from_storage; /* Part of `bytes`; the rest came from memory. */
} ckpt_restored;

/* Where a tensor lies in a larger one, of which other ranks have other parts: a box, whose own
 * shape says how large it is, or a range of the larger one as it is flattened in row-major order.
 */
typedef struct ckpt_piece {
  size_t size;                  /* sizeof(ckpt_piece), set by the caller. */
  const uint64_t* global_shape; /* The larger tensor's. */
  size_t global_dimensions;
  const uint64_t* offset; /* A box's first index in each dimension. NULL: a flat range. */
  const uint8_t* order;   /* A box's dimensions from the slowest to the fastest in memory, as
                           * its shape has them. NULL: row-major. */
  uint64_t flat_begin;    /* A flat range's first element. */
  uint32_t copy;          /* Ranks that hold the same part number their copies from 0, */
  uint32_t copies;        /* and say how many they are: then they divide its capture among
                           * themselves. 0: each captures all of it; number them from 1 then, for
                           * a 0 is not compared with the others. */
} ckpt_piece;

#define CKPT_NO_STEP UINT64_MAX

typedef struct ckpt_stats_values {
  size_t size; /* sizeof(ckpt_stats_values), set by the caller. */
  uint64_t saves_started;
  uint64_t skipped_no_slot;
  uint64_t skipped_unavailable;
  uint64_t skipped_by_agreement;
  uint64_t failed;
  uint64_t bytes_captured;
  double held_seconds;     /* Training thread inside save and guard, in total. */
  double held_seconds_max; /* The longest single time. */
  uint64_t daemon_restarts;
  uint64_t newest_captured; /* CKPT_NO_STEP: none yet; so for the three below. */
  uint64_t newest_replicated;
  uint64_t newest_committed;
  uint64_t newest_durable;
  uint64_t bytes_unchanged; /* Part of bytes_captured: a GPU did not copy it (skip_unchanged). */
} ckpt_stats_values;

/* The version of the library, "0.1.0". */
CKPT_API const char* ckpt_version(void);

/* The text of this thread's last failure: the attempt, and its object. Never NULL. Valid until the
 * next call of this thread. */
CKPT_API const char* ckpt_last_error(void);

/* Options by name, in the words of <ckpt/options.hpp> and of LIBCKPT_*: "job", "dir", "rank",
 * "save_mem_interval" ("1", "15min"), "nodes" ("A@host:port/domain,B@..."), "embedded" ("true").
 * NULL: no memory. */
CKPT_API ckpt_options* ckpt_options_new(void);
CKPT_API void ckpt_options_free(ckpt_options* options); /* NULL is allowed. */
CKPT_API int ckpt_options_set(ckpt_options* options, const char* name, const char* value);

/* Connects to the node's daemon, starting one if none runs. The options may be freed afterwards. */
CKPT_API int ckpt_open(const ckpt_options* options, ckpt_handle** handle);

/* Registers a contiguous tensor. `shape` may be NULL where `dimensions` is 0 (a single element). */
CKPT_API int ckpt_add(ckpt_handle* handle, const char* name, void* data, int dtype,
                      const int64_t* shape, size_t dimensions, uint32_t flags);
/* The same for a part of a larger tensor. `piece` is copied. */
CKPT_API int ckpt_add_piece(ckpt_handle* handle, const char* name, void* data, int dtype,
                            const int64_t* shape, size_t dimensions, uint32_t flags,
                            const ckpt_piece* piece);
/* Registers bytes that are copied inside every save and written back by ckpt_restore. A name that
   begins with "libckpt.common/" says that all ranks have the same bytes: they are compared. */
CKPT_API int ckpt_add_blob(ckpt_handle* handle, const char* name, void* bytes, size_t size);
/* Bytes of varying size: copied now; read back after ckpt_restore, valid until the next call. */
CKPT_API int ckpt_set_blob(ckpt_handle* handle, const char* name, const void* bytes, size_t size);
CKPT_API int ckpt_blob(ckpt_handle* handle, const char* name, const void** bytes, size_t* size);
/* A number that describes the next save, such as its validation loss, for the option keep_best. The
 * next ckpt_save or ckpt_save_if_needed takes all that were set; those of rank 0 count. One that is
 * not finite is ignored. */
CKPT_API int ckpt_set_metric(ckpt_handle* handle, const char* name, double value);

/* Waits until the memory for what is registered exists. Optional: ckpt_restore and the first save
 * do the same; no other save ever waits. */
CKPT_API int ckpt_prepare(ckpt_handle* handle);

/* Starts a capture of `step` if it is due (ckpt_save: always). `stream` is a CUDA stream or NULL;
 * `outcome` receives a ckpt_outcome, CKPT_NO_OUTCOME with an error, or is NULL. Never waits for
 * storage, network or a peer. Steps grow: one that was refused may be saved again, unless its
 * capture was begun, or other ranks train and know that it is given up. Restore first:
 * CKPT_INVALID_ARGUMENT while the job has a step that this session did not ask for. */
CKPT_API int ckpt_save_if_needed(ckpt_handle* handle, uint64_t step, void* stream, int* outcome);
CKPT_API int ckpt_save(ckpt_handle* handle, uint64_t step, void* stream, int* outcome);
/* Call before the next update of the tensors that are CKPT_TENSOR_GUARDED. */
CKPT_API int ckpt_guard(ckpt_handle* handle, void* stream);
/* Waits until `step`, or a newer one, has reached `level`. CKPT_UNAVAILABLE: the deadline passed;
 * UINT64_MAX, here and in ckpt_close: as long as it takes. CKPT_NOT_FOUND, at once: no save of this
 * handle brings the step there; it was skipped, failed, or never made. */
CKPT_API int ckpt_wait(ckpt_handle* handle, uint64_t step, int level, uint64_t deadline_ms);

/* Copies the newest step that all ranks can have into what is registered. CKPT_NOT_FOUND: there is
 * none, train from the beginning. `restored` may be NULL. */
CKPT_API int ckpt_restore(ckpt_handle* handle, ckpt_restored* restored);
/* That step and no other. Without it CKPT_NOT_FOUND, too; a session that has not trained yet saves
 * nothing then until a restore succeeds, or ckpt_start_fresh is called. */
CKPT_API int ckpt_restore_step(ckpt_handle* handle, uint64_t step, ckpt_restored* restored);
/* From a published checkpoint, or the newest whole one of a run's directory or of a parent of such
 * directories, without a daemon. Any number of ranks may have saved it: each tensor is put together
 * from their pieces. */
CKPT_API int ckpt_restore_from(ckpt_handle* handle, const char* path, ckpt_restored* restored);
/* Further wishes for a restore. The names are copied. */
typedef struct ckpt_restore_terms {
  size_t size;      /* sizeof(ckpt_restore_terms), set by the caller. */
  uint64_t step;    /* This step and no other; CKPT_NO_STEP: the newest. */
  const char* from; /* As in ckpt_restore_from; `step` is CKPT_NO_STEP then. NULL: the job's own. */
  /* Names in the checkpoint, or their beginning up to a dot or a slash, and what is registered here
   * instead: "encoder" is "backbone". The longest of several rules counts. */
  const char* const* names_there;
  const char* const* names_here;
  size_t renamed;      /* How many names each of the two has; both may be NULL where it is 0. */
  int32_t leaves_rest; /* Not 0: what else the checkpoint has is left, blobs too. What is registered
                        * must be there all the same. For training that begins with the weights. */
  int32_t source;      /* ckpt_source_choice, the same at all ranks; not with `from`. */
} ckpt_restore_terms;
/* A restore on these terms. */
CKPT_API int ckpt_restore_with(ckpt_handle* handle, const ckpt_restore_terms* terms,
                               ckpt_restored* restored);
/* Begins without what is stored. After a restore that failed, unless nothing was found at all,
 * saves are CKPT_INVALID_ARGUMENT until then: they would take the place of steps that may be good.
 * In mid-training it begins anew: any step may come next. All ranks call it, or none. */
CKPT_API int ckpt_start_fresh(ckpt_handle* handle);
/* Tells that training got on after ckpt_restore. It is only queued: of a process that is killed at
 * once it may not be heard. CKPT_INVALID_ARGUMENT: `step` is not what was restored last. */
CKPT_API int ckpt_restored_ok(ckpt_handle* handle, uint64_t step);

CKPT_API int ckpt_stats(ckpt_handle* handle, ckpt_stats_values* values);

/* Flushes the newest committed step and frees this job's memory on the node. */
CKPT_API int ckpt_close(ckpt_handle* handle, uint64_t deadline_ms);
/* Releases the handle; without ckpt_close before, as if the trainer had died. NULL is allowed. */
CKPT_API void ckpt_free(ckpt_handle* handle);

#ifdef __cplusplus
}
#endif

#endif
