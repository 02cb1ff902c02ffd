// ManifestRule: whether the manifest of a step can be written, before anything of it is.
#pragma once

#include <cstdint>
#include <string>

#include "agree/cluster_view.hpp"

namespace ckpt::agree {

// Why the step cannot be stored; empty: it can. Of ranks whose copies nobody reports, nothing
// counts.
std::string too_large_to_store(const ClusterView& view, format::StepId at,
                               std::uint64_t manifest_bytes_max);

}  // namespace ckpt::agree
