// Faulting in: gives fresh memory its pages in one call, instead of one fault for each page.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <span>

namespace ckpt::os {

// Call it right before writing all of `bytes`. A hint that changes no byte: memory that has its
// pages, or that cannot get them this way, is left as it is.
void fault_in(std::span<std::byte> bytes);

}  // namespace ckpt::os
