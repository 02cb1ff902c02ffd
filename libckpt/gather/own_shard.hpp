// OwnShard: whether a rank can take its own shard of a step as it lies there, or has to put what it
// wants together from the shards of all ranks.
#pragma once

#include <span>

#include "format/layout.hpp"

namespace ckpt::gather {

bool has_pieces(const format::Layout& layout);

// Whether the shard lacks a name that is wanted. Another rank may have it: the stages of a pipeline
// may swap their ranks.
bool lacks_names(const format::Layout& saved, std::span<const std::string_view> wanted);

// Whether it lacks a wanted name, or has some tensor that is another part of the whole there.
bool has_others(const format::Layout& wanted, const format::Layout& saved);

// The same for a rank that hears of whole tensors from the other ranks: whether it lacks a part, or
// has another one there.
bool has_other_parts(const format::Layout& wanted, const format::Layout& saved);

}  // namespace ckpt::gather
