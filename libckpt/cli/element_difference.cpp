#include "cli/element_difference.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/assert.hpp"

namespace ckpt::cli {

namespace {

// Bytes that are compared at once, since most of two checkpoints is often the same.
constexpr std::size_t stretch_bytes = 4096;

template <class T>
T read(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// A float of fewer bits. Whether the largest exponent stands for infinities and NaNs differs.
struct SmallFloat {
  int exponent_bits = 0;
  int mantissa_bits = 0;
  bool has_infinity = true;
};

long double small_value(const SmallFloat& kind, std::uint32_t bits) {
  const std::uint32_t mantissa_max = (1u << kind.mantissa_bits) - 1;
  const std::uint32_t exponent_max = (1u << kind.exponent_bits) - 1;
  const std::uint32_t mantissa = bits & mantissa_max;
  const std::uint32_t exponent = bits >> kind.mantissa_bits & exponent_max;
  const bool is_negative = (bits >> (kind.mantissa_bits + kind.exponent_bits) & 1) != 0;
  const int bias = static_cast<int>(exponent_max >> 1);
  long double value = 0;
  if (exponent == exponent_max && kind.has_infinity) {
    value = mantissa == 0 ? std::numeric_limits<long double>::infinity()
                          : std::numeric_limits<long double>::quiet_NaN();
  } else if (exponent == exponent_max && mantissa == mantissa_max) {
    value = std::numeric_limits<long double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<long double>(mantissa), 1 - bias - kind.mantissa_bits);
  } else {
    value = std::ldexp(static_cast<long double>(mantissa | (mantissa_max + 1)),
                       static_cast<int>(exponent) - bias - kind.mantissa_bits);
  }
  return is_negative ? -value : value;
}

void add_element(DType dtype, const std::byte* one, const std::byte* other,
                 ElementDifference& sum) {
  ++sum.different;
  double distance = 0;
  if (dtype == DType::c64) {
    distance = std::hypot(double{read<float>(one)} - double{read<float>(other)},
                          double{read<float>(one + 4)} - double{read<float>(other + 4)});
  } else {
    distance =
        static_cast<double>(std::fabs(cli::value_of(dtype, one) - cli::value_of(dtype, other)));
  }
  if (std::isfinite(distance)) {
    sum.largest = std::max(sum.largest, distance);
  } else {
    ++sum.not_finite;
  }
}

}  // namespace

long double value_of(DType dtype, const std::byte* bytes) {
  switch (dtype) {
    case DType::boolean:
    case DType::u8:
      return read<std::uint8_t>(bytes);
    case DType::i8:
      return read<std::int8_t>(bytes);
    case DType::f8_e4m3:
      return small_value(SmallFloat{4, 3, false}, read<std::uint8_t>(bytes));
    case DType::f8_e5m2:
      return small_value(SmallFloat{5, 2, true}, read<std::uint8_t>(bytes));
    case DType::f8_e8m0: {
      const int exponent = read<std::uint8_t>(bytes);
      return exponent == 255 ? std::numeric_limits<long double>::quiet_NaN()
                             : std::ldexp(1.0L, exponent - 127);
    }
    case DType::u16:
      return read<std::uint16_t>(bytes);
    case DType::i16:
      return read<std::int16_t>(bytes);
    case DType::f16:
      return small_value(SmallFloat{5, 10, true}, read<std::uint16_t>(bytes));
    case DType::bf16:
      return small_value(SmallFloat{8, 7, true}, read<std::uint16_t>(bytes));
    case DType::u32:
      return read<std::uint32_t>(bytes);
    case DType::i32:
      return read<std::int32_t>(bytes);
    case DType::f32:
      return read<float>(bytes);
    case DType::u64:
      return static_cast<long double>(read<std::uint64_t>(bytes));
    case DType::i64:
      return static_cast<long double>(read<std::int64_t>(bytes));
    case DType::f64:
      return read<double>(bytes);
    case DType::c64:
      break;
  }
  CKPT_ASSERT(dtype != DType::c64);
  return 0;
}

void add_difference(DType dtype, std::span<const std::byte> one, std::span<const std::byte> other,
                    ElementDifference& sum) {
  CKPT_ASSERT(one.size() == other.size());
  const std::size_t size = size_of(dtype);
  for (std::size_t begin = 0; begin < one.size(); begin += stretch_bytes) {
    const std::size_t bytes = std::min(stretch_bytes, one.size() - begin);
    if (std::memcmp(one.data() + begin, other.data() + begin, bytes) == 0) continue;
    for (std::size_t at = begin; at < begin + bytes; at += size) {
      if (std::memcmp(one.data() + at, other.data() + at, size) != 0)
        add_element(dtype, one.data() + at, other.data() + at, sum);
    }
  }
}

}  // namespace ckpt::cli
