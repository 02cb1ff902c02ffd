// Machine: what this machine, and the control group we are in, let us have.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <string>

namespace ckpt::os {

// What could be allocated now without swapping: of the machine, and of each control group (v1 or
// v2) around us. Zero when nothing can be read.
std::uint64_t available_memory_bytes();

// Raises the soft limit of open descriptors to the hard one; a Slot has one for each GiB.
// Answers the limit that now holds.
std::uint64_t raise_descriptor_limit();

void name_this_thread(const char* name);  // At most 15 characters.
std::string host_name();
// The directory of the program that runs, and of the library that `address` lies in; or empty.
std::string program_directory();
std::string library_directory(const void* address);

}  // namespace ckpt::os
