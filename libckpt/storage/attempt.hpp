// Attempt: where the files of one attempt to store a step are written.
//
//   on a disk    .step-000000123.t2.0011/rank-00000.part.t1         renamed when it is published
//   in a bucket  step-000000123/t2.0011/turn-1/rank-00000.part      stays; the manifest names it
//
// An attempt has one name everywhere, that of its work directory (step_directory.hpp).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "storage/site.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

// `work_name` is from work_directory_name.
std::string attempt_path(const Site& site, std::string_view work_name);

// The path of a file of a rank's part, which this turn writes into `directory` (attempt_path).
std::string path_in_attempt(os::FileSystem& files, std::string_view directory,
                            std::string_view name, std::uint32_t turn);

// In a bucket: the attempt's folder below its step's directory, "t2.0011", and back.
std::string attempt_folder(const WorkDirectory& work);
std::optional<WorkDirectory> parse_attempt_folder(Step step, std::string_view folder);
// The folder that a manifest names for a shard of this turn: "t2.0011", "t2.0011/turn-1".
std::string shard_folder(const WorkDirectory& work, std::uint32_t turn);

}  // namespace ckpt::storage
