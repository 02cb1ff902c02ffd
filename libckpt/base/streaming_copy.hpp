// StreamingCopy: a copy that keeps its target out of the caches, since nobody reads it soon.
//
// Ordinary stores read each line of the target before they write it. Without that, a large copy
// takes a third less memory bandwidth, and leaves the training thread's data in the caches.
#pragma once

#include <cstddef>
#include <span>

namespace ckpt {

// The ranges have one size and must not overlap. Other threads may see the bytes only after
// streaming_copies_done() has returned on this one.
void streaming_copy(std::span<std::byte> target, std::span<const std::byte> source);
void streaming_copies_done();

}  // namespace ckpt
