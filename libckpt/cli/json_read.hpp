// JsonRead: members of the daemon's answer as text, whatever they contain.
//
// The daemon may have another patch version. A member that is missing or of another type is shown
// as "-" and never ends the command.
#pragma once

#include <string>
#include <vector>

#include "cli/command.hpp"

namespace ckpt::cli {

std::string text_in(const Json& object, const char* member);
std::string number_in(const Json& object, const char* member);
bool flag_in(const Json& object, const char* member);
std::uint64_t count_in(const Json& object, const char* member);  // 0 if it is missing.
Json list_in(const Json& object, const char* member);            // Objects only.
std::vector<std::uint64_t> counts_in(const Json& object, const char* member);
std::vector<std::string> texts_in(const Json& object, const char* member);
Json object_in(const Json& object, const char* member);

}  // namespace ckpt::cli
