#include "cli/json_read.hpp"

#include <fmt/format.h>

namespace ckpt::cli {

namespace {

const Json& member_of(const Json& object, const char* member) {
  static const Json none;
  if (!object.is_object()) return none;
  const auto found = object.find(member);
  return found == object.end() ? none : *found;
}

}  // namespace

std::string text_in(const Json& object, const char* member) {
  const Json& value = member_of(object, member);
  return value.is_string() ? value.get<std::string>() : "-";
}

std::string number_in(const Json& object, const char* member) {
  const Json& value = member_of(object, member);
  return value.is_number_integer() ? fmt::format("{}", value.get<std::int64_t>()) : "-";
}

bool flag_in(const Json& object, const char* member) {
  const Json& value = member_of(object, member);
  return value.is_boolean() && value.get<bool>();
}

std::uint64_t count_in(const Json& object, const char* member) {
  const Json& value = member_of(object, member);
  return value.is_number_unsigned() ? value.get<std::uint64_t>() : 0;
}

Json list_in(const Json& object, const char* member) {
  Json list = Json::array();
  const Json& value = member_of(object, member);
  if (!value.is_array()) return list;
  for (const Json& element : value) {
    if (element.is_object()) list.push_back(element);
  }
  return list;
}

std::vector<std::uint64_t> counts_in(const Json& object, const char* member) {
  std::vector<std::uint64_t> counts;
  const Json& value = member_of(object, member);
  if (!value.is_array()) return counts;
  for (const Json& element : value) {
    if (element.is_number_unsigned()) counts.push_back(element.get<std::uint64_t>());
  }
  return counts;
}

std::vector<std::string> texts_in(const Json& object, const char* member) {
  std::vector<std::string> texts;
  const Json& value = member_of(object, member);
  if (!value.is_array()) return texts;
  for (const Json& element : value) {
    if (element.is_string()) texts.push_back(element.get<std::string>());
  }
  return texts;
}

Json object_in(const Json& object, const char* member) {
  const Json& value = member_of(object, member);
  return value.is_object() ? value : Json::object();
}

}  // namespace ckpt::cli
