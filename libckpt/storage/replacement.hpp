// Replacement: new files that take the places of damaged ones in a published checkpoint.
//
//   each new file is written aside and synced, and compared with the manifest's seal
//     -> all of them are whole -> before each: the checkpoint is still the same one
//     -> the new file is renamed over the damaged one -> the directory is synced
//
// The manifest stays as it is, so a reader sees an old file or a new one. A file aside has the name
// of a turn, and goes with the checkpoint if it is left behind. A bucket has no renames: there it
// lies in the folder of a turn, and is copied over the damaged object, each whole at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "storage/catalog.hpp"

namespace ckpt::storage {

class Replacement {
 public:
  struct Target {
    std::string directory;  // The checkpoint's, marked (Site::at).
    Checkpoint seen;        // As its manifest was when the damage was found.
    std::uint32_t turn;     // Random and not 0: names the files aside.
    Compute* compute = nullptr;
  };
  Replacement(os::FileSystem& files, Target target);

  // Call first for each rank. Removes what earlier replacements of its files left behind.
  Task<void> begin_rank(format::ManifestShard shard);
  // A file of a rank's member, or its part, that will be replaced. Returns the path at which the
  // caller writes the new one, and syncs it.
  std::string add_member(const format::ManifestShard& shard, std::size_t member);
  std::string add_part(const format::ManifestShard& shard);

  // Puts all of them in their places, in the order in which they were added. Errors: unavailable
  // (the checkpoint was removed or replaced meanwhile), io: some may be in their places.
  Task<void> put_in_place();
  // Removes what lies aside: all of it, unless it was renamed. Failures are logged.
  Task<void> clean_up();

  std::vector<std::string> names() const;  // The names of the files that were added.

 private:
  struct NewFile {
    std::string directory;  // The damaged one's.
    std::string name;
    std::optional<format::StoredFile> stored;  // None: it is a part.
    format::PartSeal seal;                     // The part's.
  };

  std::string add(NewFile file);
  std::string aside(const NewFile& file) const;
  bool is_in_bucket() const { return files_.objects(target_.directory) != nullptr; }
  Task<void> put_one_in_place(NewFile file);
  Task<void> copy_over(NewFile file);

  os::FileSystem& files_;
  const Target target_;
  std::vector<NewFile> new_files_;
};

}  // namespace ckpt::storage
