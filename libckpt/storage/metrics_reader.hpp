// MetricsReader: the metrics that a rank captured, out of its files in a work directory.
#pragma once

#include <cstdint>
#include <string>

#include "format/metrics.hpp"
#include "format/part_front.hpp"
#include "os/file_system.hpp"

namespace ckpt::storage {

// `front`: of the part that was written in this turn. Empty: the save had none. Errors: corruption,
// version_mismatch, io.
Task<format::Metrics> read_metrics(os::FileSystem& files, std::string directory,
                                   format::PartFront front, std::uint32_t turn);

}  // namespace ckpt::storage
