// SamePlace: whether two paths name one directory, or one prefix of a bucket, or one lies in the
// other.
#pragma once

#include <string>

namespace ckpt::cli {

// Also through links. False if one of them is not there.
bool is_same_place(const std::string& one, const std::string& other);
// Whether `inner` lies anywhere below `outer`; it need not be there yet.
bool is_below(const std::string& inner, const std::string& outer);

}  // namespace ckpt::cli
