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

// Whether the shard lacks a wanted whole tensor by its name: it may have that in parts, or another
// rank may have it.
bool lacks_whole_tensors(const format::Layout& wanted, const format::Layout& saved);

// Whether it lacks a wanted part, or has another part of some wanted tensor.
bool has_other_parts(const format::Layout& wanted, const format::Layout& saved);

}  // namespace ckpt::gather
