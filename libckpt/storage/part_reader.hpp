// PartReader: reads what a rank's part says about its files, and believes only what is sealed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/compute.hpp"
#include "format/manifest.hpp"
#include "os/file_system.hpp"

namespace ckpt::storage {

// Reads the part of a rank in `step_directory`, whose manifest this is, as a whole. Errors:
// not_found (no such rank), corruption (names the file; also a missing one), version_mismatch, io.
Task<std::shared_ptr<const format::ShardPart>> read_part(
    os::FileSystem& files, std::string step_directory,
    std::shared_ptr<const format::Manifest> manifest, std::uint32_t rank,
    Compute* compute = nullptr);
// The record in it.
Task<std::shared_ptr<const format::ShardRecord>> read_record(
    os::FileSystem& files, std::string step_directory,
    std::shared_ptr<const format::Manifest> manifest, std::uint32_t rank,
    Compute* compute = nullptr);

// Some tensors of a part, found by their names.
struct PartExcerpt {
  format::PartFront front;
  std::vector<format::PartEntry> entries;  // Ascending by name. Names that it lacks have none.
};
// Also the parts of these tensors that are named after their place (format::tensor_name_of). Reads
// only the front and the blocks that may have such names: two reads for names that lie together.
// Errors: as read_part.
Task<PartExcerpt> find_tensors(os::FileSystem& files, std::string step_directory,
                               std::shared_ptr<const format::Manifest> manifest, std::uint32_t rank,
                               std::vector<std::string> names);

struct SealedFront {
  format::PartFront front;
  format::PartSeal seal;
};
// Reads only the front of a part that no manifest seals yet. Errors: not_found, corruption (also
// when the file's size is not what its front says), version_mismatch, io.
Task<SealedFront> read_front(os::FileSystem& files, std::string path);

}  // namespace ckpt::storage
