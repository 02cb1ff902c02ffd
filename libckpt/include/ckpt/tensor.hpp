// Tensor: the description of a trainer's tensor: name, type, shape, and the place of the bytes.
#pragma once

#include <ckpt/export.hpp>
#include <ckpt/piece.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ckpt {

// Step: the trainer's iteration number. A type of its own, so that it is never mixed with a count.
enum class Step : std::uint64_t {};
constexpr std::uint64_t number(Step step) {
  return static_cast<std::uint64_t>(step);
}

// The types that safetensors can represent and that have a whole number of bytes per element.
enum class DType : std::uint8_t {
  boolean,
  u8,
  i8,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
  u16,
  i16,
  f16,
  bf16,
  u32,
  i32,
  f32,
  u64,
  i64,
  f64,
  c64
};

constexpr std::size_t size_of(DType type) {
  switch (type) {
    case DType::boolean:
    case DType::u8:
    case DType::i8:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::f8_e8m0:
      return 1;
    case DType::u16:
    case DType::i16:
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::u32:
    case DType::i32:
    case DType::f32:
      return 4;
    case DType::u64:
    case DType::i64:
    case DType::f64:
    case DType::c64:
      return 8;
  }
  return 0;
}

// The name that safetensors files carry: "F32", "BF16", "F8_E4M3".
CKPT_EXPORT std::string_view safetensors_name(DType type);
CKPT_EXPORT std::optional<DType> dtype_from_safetensors(std::string_view name);

enum class Location : std::uint8_t {
  host,  // Ordinary memory of this process.
  cuda,  // Memory of the GPU `device_index`, as cudaMalloc gives it, in its primary context.
};

// A CUDA stream of any GPU of this process: a CUstream or cudaStream_t, which are one type. Null
// means the default stream; trainers without GPUs pass it. The handle is never dereferenced.
//
// Every GPU with registered tensors waits for this stream. GPUs other than the stream's own also
// wait for their default streams. With streams of your own on several GPUs, let the one that you
// pass wait for the others first.
struct Stream {
  void* handle = nullptr;
};

// TensorRef: borrowed bytes. They must stay where they are until the Checkpointer is closed.
struct TensorRef {
  void* data = nullptr;
  DType dtype = DType::u8;
  std::vector<std::int64_t> shape;    // Empty: a 0-d tensor of one element.
  std::vector<std::int64_t> strides;  // In elements; empty: contiguous. Views are refused.
  Location location = Location::host;
  int device_index = 0;
  // True: the trainer changes it only between guard() and the next save, so it may be copied after
  // the save has returned. False: it is copied before the save returns, or, on a GPU, before any
  // work that is queued on the stream after the save.
  bool guarded = false;
  std::optional<Piece> piece;  // None: the whole tensor, row-major.
};

// A contiguous tensor in host memory: add("weights", tensor(data, DType::f32, {1024, 1024})).
inline TensorRef tensor(void* data, DType dtype, std::vector<std::int64_t> shape) {
  TensorRef made;
  made.data = data;
  made.dtype = dtype;
  made.shape = std::move(shape);
  return made;
}

struct NamedTensor {
  std::string name;
  TensorRef tensor;
};

inline constexpr std::size_t archives_max = 12;

}  // namespace ckpt
