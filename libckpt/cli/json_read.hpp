// JsonRead: members of what the daemon answered, as text, whatever stands there.
//
// The daemon may be of another patch version: a member that is missing or of another type is shown
// as "-" and never ends the command.
#pragma once

#include <string>
#include <vector>

#include "cli/command.hpp"

namespace ckpt::cli {

std::string text_in(const Json& object, const char* member);
std::string number_in(const Json& object, const char* member);
bool flag_in(const Json& object, const char* member);
std::uint64_t count_in(const Json& object, const char* member);  // 0 where there is none.
Json list_in(const Json& object, const char* member);            // Objects only.
std::vector<std::uint64_t> counts_in(const Json& object, const char* member);
Json object_in(const Json& object, const char* member);

}  // namespace ckpt::cli
