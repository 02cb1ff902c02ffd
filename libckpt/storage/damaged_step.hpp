// DamagedStep: which step a directory was whose manifest is damaged or gone, by a part beside it.
//
// A part says by itself what it is of, and has a checksum of that. The name of the directory has
// the number alone, which steps of several timelines may have.
#pragma once

#include <optional>

#include "storage/catalog.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

// None: it is not damaged, or no part of that run and step can be read there.
Task<std::optional<format::StepId>> step_of_parts(Site site, Rejected rejected, format::RunId run);

}  // namespace ckpt::storage
