// ManifestRule: whether the manifest of a step can be written; known before anything is written.
#pragma once

#include <cstdint>
#include <string>

#include "agree/cluster_view.hpp"

namespace ckpt::agree {

// Why the step cannot be stored; empty: it can. Ranks without a reported copy are not counted.
std::string too_large_to_store(const ClusterView& view, format::StepId at,
                               std::uint64_t manifest_bytes_max);

}  // namespace ckpt::agree
