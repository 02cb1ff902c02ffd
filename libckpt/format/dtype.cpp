// The names of types in safetensors. Their numbers are stored, so they are frozen here.
#include <array>
#include <ckpt/tensor.hpp>
#include <utility>

namespace ckpt {

namespace {

constexpr std::array<std::pair<DType, std::string_view>, 17> names = {{
    {DType::boolean, "BOOL"},
    {DType::u8, "U8"},
    {DType::i8, "I8"},
    {DType::f8_e4m3, "F8_E4M3"},
    {DType::f8_e5m2, "F8_E5M2"},
    {DType::f8_e8m0, "F8_E8M0"},
    {DType::u16, "U16"},
    {DType::i16, "I16"},
    {DType::f16, "F16"},
    {DType::bf16, "BF16"},
    {DType::u32, "U32"},
    {DType::i32, "I32"},
    {DType::f32, "F32"},
    {DType::u64, "U64"},
    {DType::i64, "I64"},
    {DType::f64, "F64"},
    {DType::c64, "C64"},
}};

static_assert([] {
  for (std::size_t index = 0; index < names.size(); ++index)
    if (static_cast<std::size_t>(names[index].first) != index) return false;
  return true;
}());
static_assert(static_cast<std::size_t>(DType::c64) + 1 == names.size());

}  // namespace

std::string_view safetensors_name(DType type) {
  const auto index = static_cast<std::size_t>(type);
  return index < names.size() ? names[index].second : std::string_view("unknown");
}

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  for (const auto& [type, known] : names)
    if (known == name) return type;
  return std::nullopt;
}

}  // namespace ckpt
