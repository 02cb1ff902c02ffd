// SamePlace: whether two paths name one directory, or one prefix of a bucket.
#pragma once

#include <string>

namespace ckpt::cli {

// Also through links. False if one of them is not there.
bool is_same_place(const std::string& one, const std::string& other);

}  // namespace ckpt::cli
