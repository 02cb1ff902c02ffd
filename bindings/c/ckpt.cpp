// The C ABI over ckpt::FrameworkCheckpointer: checks every pointer, and lets no exception out.
#include "ckpt.h"

#include <algorithm>
#include <chrono>
#include <ckpt/framework.hpp>
#include <ckpt/version.hpp>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>

struct ckpt_options {
  ckpt::Options values;
};
struct ckpt_handle {
  ckpt::FrameworkCheckpointer checkpointer;
};

namespace {

using ckpt::Errc;
using ckpt::Status;
using ckpt::Step;

// The numbers of the ABI are those of the C++ enumerations; they are converted by a cast.
static_assert(static_cast<int>(Errc::invalid_argument) == CKPT_INVALID_ARGUMENT);
static_assert(static_cast<int>(Errc::corruption) == CKPT_CORRUPTION);
static_assert(static_cast<int>(Errc::version_mismatch) == CKPT_VERSION_MISMATCH);
static_assert(static_cast<int>(ckpt::DType::f8_e8m0) == CKPT_DTYPE_F8_E8M0);
static_assert(static_cast<int>(ckpt::DType::f32) == CKPT_DTYPE_F32);
static_assert(static_cast<int>(ckpt::DType::c64) == CKPT_DTYPE_C64);
static_assert(static_cast<int>(ckpt::SaveOutcome::not_due) == CKPT_NOT_DUE);
static_assert(static_cast<int>(ckpt::SaveOutcome::disabled) == CKPT_DISABLED);
static_assert(static_cast<int>(ckpt::SaveOutcome::skipped_by_agreement) ==
              CKPT_SKIPPED_BY_AGREEMENT);
static_assert(static_cast<int>(ckpt::Level::captured) == CKPT_CAPTURED);
static_assert(static_cast<int>(ckpt::Level::durable) == CKPT_DURABLE);
static_assert(static_cast<int>(ckpt::RestoreSource::storage) == CKPT_STORAGE);

constexpr std::size_t dimensions_max = 64;  // As many as any framework has.

// A fixed array: a thread's first error must not need memory.
thread_local char last_error[1024] = "";

int failed(int code, std::string_view text) noexcept {
  const std::size_t bytes = std::min(text.size(), sizeof last_error - 1);
  std::memcpy(last_error, text.data(), bytes);
  last_error[bytes] = '\0';
  return code;
}
int failed(const ckpt::Error& error) {
  return failed(static_cast<int>(error.code()), error.message());
}
int answer(const Status& status) {
  return status ? CKPT_OK : failed(status.error());
}
// UINT64_MAX is "for ever", too.
std::chrono::milliseconds milliseconds_of(std::uint64_t count) {
  return std::chrono::milliseconds(std::min<std::uint64_t>(count, INT64_MAX));
}
int null_argument(const char* function, const char* argument) noexcept {
  char text[128];
  std::snprintf(text, sizeof text, "invalid argument: %s: %s is NULL", function, argument);
  return failed(CKPT_INVALID_ARGUMENT, text);
}

// Runs `body`, which returns a code, and turns whatever it throws into one.
template <class Body>
int without_exceptions(Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return failed(CKPT_EXHAUSTED, "exhausted: out of memory");
  } catch (const std::exception& exception) {
    return failed(CKPT_INTERNAL, exception.what());
  } catch (...) {
    return failed(CKPT_INTERNAL, "an exception of unknown type");
  }
}

// For a structure that the caller gives to be filled; null is none.
template <class T>
int check_size(const char* function, const T* target) noexcept {
  if (target == nullptr || target->size >= sizeof(std::size_t)) return CKPT_OK;
  char text[128];
  std::snprintf(text, sizeof text, "invalid argument: %s: the size field is not set", function);
  return failed(CKPT_INVALID_ARGUMENT, text);
}

// Writes as much of `value` as the caller's structure has room for, and keeps its size field.
template <class T>
int fill(const char* function, T* target, T value) noexcept {
  if (const int refused = check_size(function, target); refused != CKPT_OK) return refused;
  value.size = target->size;
  std::memcpy(target, &value, std::min(target->size, sizeof value));
  return CKPT_OK;
}

int fill(ckpt_restored* target, const ckpt::Restored& restored) {
  if (target == nullptr) return CKPT_OK;
  ckpt_restored value = {};
  value.step = ckpt::number(restored.step);
  value.timeline = restored.timeline;
  value.bytes = restored.bytes;
  value.seconds = std::chrono::duration<double>(restored.took).count();
  value.source = static_cast<std::int32_t>(restored.source);
  restored.source_name.copy(value.source_name, sizeof value.source_name - 1);
  value.newest_seen = restored.newest_seen ? ckpt::number(*restored.newest_seen) : CKPT_NO_STEP;
  value.bytes_from_storage = restored.bytes_from_storage;
  return fill("ckpt_restore", target, value);
}

int restore(const char* function, ckpt_handle& handle, const ckpt::RestoreRequest& request,
            ckpt_restored* restored) noexcept {
  return without_exceptions([&]() -> int {
    // Before anything is overwritten.
    if (const int refused = check_size(function, restored); refused != CKPT_OK) return refused;
    const auto result = handle.checkpointer.restore(request);
    return result ? fill(restored, *result) : failed(result.error());
  });
}

ckpt::RestoreRequest request_from(const ckpt_restore_terms& terms) {
  ckpt::RestoreRequest request;
  if (terms.step != CKPT_NO_STEP) request.step = Step{terms.step};
  if (terms.from != nullptr) request.from = terms.from;
  for (std::size_t index = 0; index < terms.renamed; ++index)
    request.renamed.emplace_back(terms.names_there[index], terms.names_here[index]);
  request.leaves_rest = terms.leaves_rest != 0;
  request.source = static_cast<ckpt::SourceChoice>(terms.source);
  return request;
}

int add(const char* function, ckpt_handle& handle, const char* name, void* data, int dtype,
        std::span<const std::int64_t> shape, std::uint32_t flags,
        std::optional<ckpt::Piece> piece) noexcept {
  const auto refused = [&](const char* why) {
    return failed(CKPT_INVALID_ARGUMENT, std::string("invalid argument: ") + function + ": " + why);
  };
  return without_exceptions([&]() -> int {
    if (dtype < CKPT_DTYPE_BOOLEAN || dtype > CKPT_DTYPE_C64)
      return refused("there is no such dtype");
    if (shape.size() > dimensions_max) return refused("more than 64 dimensions");
    if ((flags & ~(CKPT_TENSOR_GUARDED | CKPT_TENSOR_CUDA | 0xff00u)) != 0)
      return refused("an unknown flag");
    ckpt::TensorRef tensor;
    tensor.data = data;
    tensor.dtype = static_cast<ckpt::DType>(dtype);
    tensor.shape.assign(shape.begin(), shape.end());
    tensor.guarded = (flags & CKPT_TENSOR_GUARDED) != 0;
    if ((flags & CKPT_TENSOR_CUDA) != 0) tensor.location = ckpt::Location::cuda;
    tensor.device_index = static_cast<int>((flags >> 8) & 0xffu);
    tensor.piece = std::move(piece);
    return answer(handle.checkpointer.add(name, std::move(tensor)));
  });
}

ckpt::Piece piece_from(const ckpt_piece& given) {
  const std::size_t dimensions = given.global_dimensions;
  ckpt::Piece piece;
  piece.global_shape.assign(given.global_shape, given.global_shape + dimensions);
  if (given.offset != nullptr) piece.offset.assign(given.offset, given.offset + dimensions);
  if (given.order != nullptr) piece.order.assign(given.order, given.order + dimensions);
  // A box of no dimensions has no offset to point to.
  if (given.offset == nullptr && dimensions > 0) piece.flat_begin = given.flat_begin;
  piece.copy = given.copy;
  piece.copies = given.copies;
  return piece;
}

std::uint64_t step_or_none(const std::optional<Step>& step) {
  return step ? ckpt::number(*step) : CKPT_NO_STEP;
}

// Clears the outcome before a save, so that a failure leaves no older value there.
void forget(int* outcome) noexcept {
  if (outcome != nullptr) *outcome = CKPT_NO_OUTCOME;
}
int answer(const ckpt::Result<ckpt::SaveOutcome>& saved, int* outcome) {
  if (!saved) return failed(saved.error());
  if (outcome != nullptr) *outcome = static_cast<int>(*saved);
  return CKPT_OK;
}

}  // namespace

#define CKPT_NEED(argument) \
  if ((argument) == nullptr) return null_argument(__func__, #argument)

extern "C" {

const char* ckpt_version(void) {
  return CKPT_VERSION_STRING;
}

const char* ckpt_last_error(void) {
  return last_error;
}

ckpt_options* ckpt_options_new(void) {
  return new (std::nothrow) ckpt_options;
}

void ckpt_options_free(ckpt_options* options) {
  delete options;
}

int ckpt_options_set(ckpt_options* options, const char* name, const char* value) {
  CKPT_NEED(options);
  CKPT_NEED(name);
  CKPT_NEED(value);
  return without_exceptions([&] { return answer(options->values.set(name, value)); });
}

int ckpt_open(const ckpt_options* options, ckpt_handle** handle) {
  CKPT_NEED(options);
  CKPT_NEED(handle);
  *handle = nullptr;
  return without_exceptions([&]() -> int {
    auto opened = ckpt::FrameworkCheckpointer::open(options->values);
    if (!opened) return failed(opened.error());
    *handle = new ckpt_handle{std::move(*opened)};
    return CKPT_OK;
  });
}

int ckpt_add(ckpt_handle* handle, const char* name, void* data, int dtype, const int64_t* shape,
             size_t dimensions, uint32_t flags) {
  CKPT_NEED(handle);
  CKPT_NEED(name);
  if (dimensions > 0) CKPT_NEED(shape);
  return add("ckpt_add", *handle, name, data, dtype, {shape, dimensions}, flags, {});
}

int ckpt_add_piece(ckpt_handle* handle, const char* name, void* data, int dtype,
                   const int64_t* shape, size_t dimensions, uint32_t flags,
                   const ckpt_piece* piece) {
  CKPT_NEED(handle);
  CKPT_NEED(name);
  if (dimensions > 0) CKPT_NEED(shape);
  CKPT_NEED(piece);
  if (const int refused = check_size("ckpt_add_piece", piece); refused != CKPT_OK) return refused;
  ckpt_piece given = {};
  std::memcpy(&given, piece, std::min(piece->size, sizeof given));
  if (given.global_dimensions > dimensions_max)
    return failed(CKPT_INVALID_ARGUMENT,
                  "invalid argument: ckpt_add_piece: more than 64 dimensions");
  if (given.global_dimensions > 0) CKPT_NEED(given.global_shape);
  return without_exceptions([&] {
    return add("ckpt_add_piece", *handle, name, data, dtype, {shape, dimensions}, flags,
               piece_from(given));
  });
}

int ckpt_add_blob(ckpt_handle* handle, const char* name, void* bytes, size_t size) {
  CKPT_NEED(handle);
  CKPT_NEED(name);
  if (size > 0) CKPT_NEED(bytes);
  return without_exceptions([&] {
    const std::span<std::byte> span(static_cast<std::byte*>(bytes), size);
    return answer(handle->checkpointer.add_blob(name, span));
  });
}

int ckpt_set_blob(ckpt_handle* handle, const char* name, const void* bytes, size_t size) {
  CKPT_NEED(handle);
  CKPT_NEED(name);
  if (size > 0) CKPT_NEED(bytes);
  return without_exceptions([&] {
    const std::span<const std::byte> span(static_cast<const std::byte*>(bytes), size);
    return answer(handle->checkpointer.set_blob(name, span));
  });
}

int ckpt_set_metric(ckpt_handle* handle, const char* name, double value) {
  CKPT_NEED(handle);
  CKPT_NEED(name);
  return without_exceptions([&] { return answer(handle->checkpointer.set_metric(name, value)); });
}

int ckpt_blob(ckpt_handle* handle, const char* name, const void** bytes, size_t* size) {
  CKPT_NEED(handle);
  CKPT_NEED(name);
  CKPT_NEED(bytes);
  CKPT_NEED(size);
  return without_exceptions([&]() -> int {
    const auto found = handle->checkpointer.blob(name);
    if (!found)
      return failed(CKPT_NOT_FOUND, "not found: there is no blob '" + std::string(name) + "'");
    *bytes = found->data();
    *size = found->size();
    return CKPT_OK;
  });
}

int ckpt_prepare(ckpt_handle* handle) {
  CKPT_NEED(handle);
  return without_exceptions([&] { return answer(handle->checkpointer.prepare()); });
}

int ckpt_save_if_needed(ckpt_handle* handle, uint64_t step, void* stream, int* outcome) {
  forget(outcome);
  CKPT_NEED(handle);
  return without_exceptions([&] {
    const ckpt::Stream on{stream};
    return answer(handle->checkpointer.save_checkpoint_if_needed(Step{step}, on), outcome);
  });
}

int ckpt_save(ckpt_handle* handle, uint64_t step, void* stream, int* outcome) {
  forget(outcome);
  CKPT_NEED(handle);
  return without_exceptions(
      [&] { return answer(handle->checkpointer.save(Step{step}, ckpt::Stream{stream}), outcome); });
}

int ckpt_guard(ckpt_handle* handle, void* stream) {
  CKPT_NEED(handle);
  return without_exceptions(
      [&] { return answer(handle->checkpointer.guard(ckpt::Stream{stream})); });
}

int ckpt_wait(ckpt_handle* handle, uint64_t step, int level, uint64_t deadline_ms) {
  CKPT_NEED(handle);
  if (level < CKPT_CAPTURED || level > CKPT_DURABLE)
    return failed(CKPT_INVALID_ARGUMENT, "invalid argument: ckpt_wait: there is no such level");
  return without_exceptions([&] {
    const std::chrono::milliseconds deadline = milliseconds_of(deadline_ms);
    return answer(handle->checkpointer.wait(Step{step}, static_cast<ckpt::Level>(level), deadline));
  });
}

int ckpt_restore(ckpt_handle* handle, ckpt_restored* restored) {
  CKPT_NEED(handle);
  return restore("ckpt_restore", *handle, {}, restored);
}

int ckpt_restore_step(ckpt_handle* handle, uint64_t step, ckpt_restored* restored) {
  CKPT_NEED(handle);
  return restore("ckpt_restore_step", *handle, {.step = Step{step}}, restored);
}

int ckpt_restore_from(ckpt_handle* handle, const char* path, ckpt_restored* restored) {
  CKPT_NEED(handle);
  CKPT_NEED(path);
  return without_exceptions(
      [&] { return restore("ckpt_restore_from", *handle, {.from = path}, restored); });
}

int ckpt_restore_with(ckpt_handle* handle, const ckpt_restore_terms* terms,
                      ckpt_restored* restored) {
  CKPT_NEED(handle);
  CKPT_NEED(terms);
  if (const int refused = check_size("ckpt_restore_with", terms); refused != CKPT_OK)
    return refused;
  ckpt_restore_terms given = {};
  given.step = CKPT_NO_STEP;
  std::memcpy(&given, terms, std::min(terms->size, sizeof given));
  if (given.renamed > 0) {
    CKPT_NEED(given.names_there);
    CKPT_NEED(given.names_here);
  }
  for (std::size_t index = 0; index < given.renamed; ++index) {
    CKPT_NEED(given.names_there[index]);
    CKPT_NEED(given.names_here[index]);
  }
  if (given.source < CKPT_ANY_SOURCE || given.source > CKPT_STORAGE_ONLY)
    return failed(CKPT_INVALID_ARGUMENT,
                  "invalid argument: ckpt_restore_with: there is no such source");
  return without_exceptions(
      [&] { return restore("ckpt_restore_with", *handle, request_from(given), restored); });
}

int ckpt_start_fresh(ckpt_handle* handle) {
  CKPT_NEED(handle);
  return without_exceptions([&] { return answer(handle->checkpointer.start_fresh()); });
}

int ckpt_restored_ok(ckpt_handle* handle, uint64_t step) {
  CKPT_NEED(handle);
  return without_exceptions([&] { return answer(handle->checkpointer.restored_ok(Step{step})); });
}

int ckpt_stats(ckpt_handle* handle, ckpt_stats_values* values) {
  CKPT_NEED(handle);
  CKPT_NEED(values);
  return without_exceptions([&] {
    const ckpt::Stats stats = handle->checkpointer.stats();
    ckpt_stats_values out = {};
    out.saves_started = stats.saves_started;
    out.skipped_no_slot = stats.skipped_no_slot;
    out.skipped_unavailable = stats.skipped_unavailable;
    out.skipped_by_agreement = stats.skipped_by_agreement;
    out.failed = stats.failed;
    out.bytes_captured = stats.bytes_captured;
    out.held_seconds = std::chrono::duration<double>(stats.held).count();
    out.held_seconds_max = std::chrono::duration<double>(stats.held_max).count();
    out.daemon_restarts = stats.daemon_restarts;
    out.newest_captured = step_or_none(stats.captured);
    out.newest_replicated = step_or_none(stats.replicated);
    out.newest_committed = step_or_none(stats.committed);
    out.newest_durable = step_or_none(stats.durable);
    out.bytes_unchanged = stats.bytes_unchanged;
    return fill("ckpt_stats", values, out);
  });
}

int ckpt_close(ckpt_handle* handle, uint64_t deadline_ms) {
  CKPT_NEED(handle);
  return without_exceptions(
      [&] { return answer(handle->checkpointer.close(milliseconds_of(deadline_ms))); });
}

void ckpt_free(ckpt_handle* handle) {
  delete handle;
}

}  // extern "C"
