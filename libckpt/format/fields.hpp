// Fields: a struct names its fields once, in the order in which they are stored or sent. Writing
// and reading both walk that list, so that the two cannot differ.
//
//   auto fields(Is<Damage> auto& it) {
//     return field_list(it.id, enumerator(it.code, Errc{}, Errc::version_mismatch));
//   }
//
// The list lies in the namespace of its struct, where both walks (field_codec.hpp) find it.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "format/extent.hpp"
#include "format/ids.hpp"

namespace ckpt::format {

// A list serves the const struct, which is written, and the other one, which is read.
template <class T, class Type>
concept Is = std::same_as<std::remove_const_t<T>, Type>;

template <class T>
concept HasFields = requires(T& it) { fields(it); };

// Keeps references to the fields, and copies of what says more about one: Text, Enumerator.
template <class... Fields>
std::tuple<Fields...> field_list(Fields&&... all) {
  return {std::forward<Fields>(all)...};
}

template <class String>
struct Text {
  String& value;
  std::size_t bytes_max;  // A longer one is not read.
};
template <class String>
Text<String> text(String& value, std::size_t bytes_max) {
  return {value, bytes_max};
}

template <class Enum>
struct Enumerator {
  Enum& value;
  std::remove_const_t<Enum> first, last;  // Without a gap between them.
};
template <class Enum>
Enumerator<Enum> enumerator(Enum& value, std::remove_const_t<Enum> first,
                            std::remove_const_t<Enum> last) {
  return {value, first, last};
}

// An optional whose value takes its place in any case; zeros stand for none.
template <class Optional>
struct Padded {
  Optional& value;
};
template <class Optional>
Padded<Optional> padded(Optional& value) {
  return {value};
}

// The same, with the value before the mark that says whether there is one.
template <class Optional>
struct ValueFirst {
  Optional& value;
};
template <class Optional>
ValueFirst<Optional> value_first(Optional& value) {
  return {value};
}

// Lists of fields that several records have.
auto fields(Is<StepId> auto& it) {
  return field_list(it.timeline, it.step);
}
auto fields(Is<ShardId> auto& it) {
  return field_list(it.at, it.rank);
}
auto fields(Is<Extent> auto& it) {
  return field_list(it.offset, it.bytes);
}

// How many bytes a T takes at least: it bounds what the length of a list may make us allocate.
template <class T>
struct EncodedBytes {
  static constexpr std::size_t min = 1;
};
template <class T>
inline constexpr std::size_t encoded_bytes_min = EncodedBytes<std::remove_cvref_t<T>>::min;
template <std::integral T>
struct EncodedBytes<T> {
  static constexpr std::size_t min = sizeof(T);
};
template <>
struct EncodedBytes<Step> {
  static constexpr std::size_t min = sizeof(Step);
};
template <>
struct EncodedBytes<Digest> {
  static constexpr std::size_t min = sizeof(Digest);
};
template <>
struct EncodedBytes<std::string> {
  static constexpr std::size_t min = sizeof(std::uint32_t);
};
template <class String>
struct EncodedBytes<Text<String>> : EncodedBytes<std::string> {};
template <class Optional>
struct EncodedBytes<Padded<Optional>> {
  static constexpr std::size_t min = 1 + encoded_bytes_min<typename Optional::value_type>;
};
template <class Optional>
struct EncodedBytes<ValueFirst<Optional>> : EncodedBytes<Padded<Optional>> {};
template <class T>
struct EncodedBytes<std::vector<T>> {
  static constexpr std::size_t min = sizeof(std::uint32_t);
};
template <class... Fields>
struct EncodedBytes<std::tuple<Fields...>> {
  static constexpr std::size_t min = (encoded_bytes_min<Fields> + ... + 0);
};
template <HasFields T>
struct EncodedBytes<T> : EncodedBytes<decltype(fields(std::declval<T&>()))> {};

}  // namespace ckpt::format
