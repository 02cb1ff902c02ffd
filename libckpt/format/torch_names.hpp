// TorchNames: torch's names for the types of elements in its pickles.
#pragma once

#include <array>
#include <ckpt/tensor.hpp>
#include <string_view>

namespace ckpt::format {

struct TorchName {
  std::string_view name;
  DType dtype;
};

// Classes of storages. The types that came later have none: their storages are untyped.
inline constexpr std::array torch_storages = {TorchName{"torch.FloatStorage", DType::f32},
                                              TorchName{"torch.DoubleStorage", DType::f64},
                                              TorchName{"torch.HalfStorage", DType::f16},
                                              TorchName{"torch.BFloat16Storage", DType::bf16},
                                              TorchName{"torch.LongStorage", DType::i64},
                                              TorchName{"torch.IntStorage", DType::i32},
                                              TorchName{"torch.ShortStorage", DType::i16},
                                              TorchName{"torch.CharStorage", DType::i8},
                                              TorchName{"torch.ByteStorage", DType::u8},
                                              TorchName{"torch.BoolStorage", DType::boolean},
                                              TorchName{"torch.ComplexFloatStorage", DType::c64}};
inline constexpr std::array torch_dtypes = {TorchName{"torch.float32", DType::f32},
                                            TorchName{"torch.float64", DType::f64},
                                            TorchName{"torch.float16", DType::f16},
                                            TorchName{"torch.bfloat16", DType::bf16},
                                            TorchName{"torch.int64", DType::i64},
                                            TorchName{"torch.int32", DType::i32},
                                            TorchName{"torch.int16", DType::i16},
                                            TorchName{"torch.int8", DType::i8},
                                            TorchName{"torch.uint8", DType::u8},
                                            TorchName{"torch.bool", DType::boolean},
                                            TorchName{"torch.uint16", DType::u16},
                                            TorchName{"torch.uint32", DType::u32},
                                            TorchName{"torch.uint64", DType::u64},
                                            TorchName{"torch.complex64", DType::c64},
                                            TorchName{"torch.float8_e4m3fn", DType::f8_e4m3},
                                            TorchName{"torch.float8_e5m2", DType::f8_e5m2},
                                            TorchName{"torch.float8_e8m0fnu", DType::f8_e8m0}};
inline constexpr std::string_view torch_untyped_storage = "torch.storage.UntypedStorage";
inline constexpr std::string_view torch_rebuild_tensor = "torch._utils._rebuild_tensor_v2";
inline constexpr std::string_view torch_rebuild_typed_tensor = "torch._utils._rebuild_tensor_v3";
inline constexpr std::string_view torch_ordered_dict = "collections.OrderedDict";

}  // namespace ckpt::format
