// Copies: compares what ranks captured of the same bytes, when a step is stored.
//
// Ranks that declare copies of a tensor, or state as common, should have the same bytes. Each
// writer notes the checksums of a rank's declared copies in the attempt, beside its files:
// "rank-00003.copies". The publisher reads the notes, compares them, and removes them. No
// checkpoint has them, and a difference keeps nothing from being published.
//
// Ranks with equal notes are compared by one digest, so that what is read grows with the number of
// different notes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "format/copy_note.hpp"
#include "format/shard_record.hpp"
#include "storage/member_writer.hpp"

namespace ckpt::storage {

// The smallest of a rank's declared copies are noted, up to this much in sum: hashing them again
// takes a core some ten milliseconds.
inline constexpr std::uint64_t compared_bytes_max = std::uint64_t{256} << 20;
// One publication keeps so many notes.
inline constexpr std::size_t compared_entries_max = 1u << 20;

using format::CopyNote;

// The parts of a Slot that other ranks may have captured, too.
struct DeclaredCopy {
  std::string name;
  Digest identity;
  format::Extent extent;
};
std::vector<DeclaredCopy> declared_copies(const format::ShardRecord& record);

// Leaves the note beside the files that write_shard has written from the same source, together with
// what the trainer found of copies that ranks divide. Nothing to note: no file. Errors: io,
// exhausted.
Task<void> note_copies(os::FileSystem& files, ShardToWrite source, std::string work_directory,
                       Compute* compute);

// CopyDifference: one tensor that is not the same at all ranks that declare it as copies.
struct CopyDifference {
  std::string name;
  std::vector<std::vector<std::uint32_t>> ranks;  // Those with equal bytes together.
  bool operator==(const CopyDifference&) const = default;
};
// "tensor \"norm\" differs: ranks 0, 2; rank 1".
std::string describe(const CopyDifference& difference);

// The notes of ranks, compared (pure).
class CopyComparison {
 public:
  // `notes` is the digest of the rank's note. False: the entries of it are wanted.
  bool add_rank(std::uint32_t rank, const Digest& notes);
  void add_notes(const Digest& digest, std::vector<CopyNote> notes);
  // In the order of names. `has_left_out`: there were too many to compare all.
  std::vector<CopyDifference> differences() const;
  bool has_left_out() const { return has_left_out_; }

 private:
  std::map<Digest, std::vector<std::uint32_t>> ranks_;  // By note.
  std::map<Digest, std::vector<CopyNote>> notes_;
  std::size_t entries_ = 0;
  bool has_left_out_ = false;
};

struct ComparedCopies {
  std::vector<CopyDifference> differences;
  bool has_left_out = false;
};

// CopiesDiffer: the newest save to storage in which copies were not the same.
struct CopiesDiffer {
  std::uint64_t saves = 0;  // This node published so many with such a difference.
  format::StepId at;
  std::size_t tensors = 0;
  CopyDifference first;          // In the order of names.
  std::string in_words() const;  // "step 7: ...". Empty: none.
};

// Reads the notes of an attempt, of the turns that count, and removes all notes. `turns` is as in
// PublishOrder. Errors: io.
Task<ComparedCopies> compare_copies(os::FileSystem& files, std::string work_directory,
                                    std::uint32_t world_size, std::vector<std::uint32_t> turns);

}  // namespace ckpt::storage
