// Path: marks in a path the point from which symbolic links are refused.
//
// The user's directory may be reached through links; nothing below it may. `beneath` joins the two
// with "/./", as rsync does; a FileSystem follows links to the left of it and none to the right.
// Without the mark, links are refused at the last component only.
#pragma once

#include <ckpt/result.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::os {

std::string beneath(std::string_view root, std::string_view name);
// Joins to a parent that already lies beneath: keeps its mark.
std::string join(std::string_view parent, std::string_view name);
// Removes the mark, for people and logs.
std::string display(std::string_view path);
// The last component; empty for "/".
std::string_view file_name(std::string_view path);

struct SplitPath {
  std::string root;                // Followed through links.
  std::vector<std::string> names;  // Links refused; empty: the root itself.
};
// Errors: invalid_argument (empty, a NUL, or ".." to the right of the mark).
Result<SplitPath> split(std::string_view path);

}  // namespace ckpt::os
