// FoundPieces: of all that the shards of a step have under wanted names, the part that a reader
// needs: the pieces that a want overlaps, and the little that an error says of the others.
//
// Shards may come in any order: what is kept, and each error, depends only on what they have.
//
// Memory: about 300 bytes for each different region of two dimensions that a want overlaps, and 32
//         more for each further dimension; 60 for each of its copies, of which some are kept; less
//         than 1 KiB for each wanted name; the records of the shards that a kept piece is from. It
//         does not grow with the other pieces.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "format/shard_record.hpp"
#include "gather/seen_forms.hpp"
#include "gather/shard_source.hpp"
#include "gather/wants.hpp"
#include "plan/piece_index.hpp"
#include "plan/planner.hpp"

namespace ckpt::gather {

// From copies of a region: the nearest, and of these the ones whose ranks follow the reader's. So
// many readers spread over many holders.
inline constexpr std::size_t copies_kept_max = 8;

class FoundPieces {
 public:
  // `wants` outlive it. `holders`: each shard's.
  FoundPieces(const Wants& wants, ReaderRank reader, std::vector<plan::Holder> holders);
  FoundPieces(const FoundPieces&) = delete;  // It refers to its own names.
  FoundPieces& operator=(const FoundPieces&) = delete;

  // The names to look for in each shard; they ascend.
  const std::vector<std::string>& names() const { return names_; }
  // Takes what is needed of a shard. Call once for each.
  void add(std::uint32_t rank, Excerpt excerpt);

  // In all shards. Errors: invalid_argument (two names of one memory here have two there; a piece
  // outside of its tensor; two types or whole shapes of one name: no other source helps),
  // unsupported (a whole tensor of several ranks, and another number of readers).
  Result<plan::PieceIndex> index() const;
  // Null: no kept piece, and no bytes that are wanted as they are, are from this shard.
  std::shared_ptr<const format::ShardRecord> record(std::uint32_t rank) const;

  std::size_t piece_count() const { return piece_count_; }
  std::size_t record_count() const { return records_.size(); }

 private:
  struct Location {
    std::uint32_t rank = 0;
    std::uint64_t offset = 0;
    std::vector<std::uint8_t> order;
  };
  struct Copies {
    Region region;
    std::vector<Location> places;  // The best ones first.
  };
  // The ranks that saved a name as a whole tensor with elements, and the one that may be read.
  struct WholeTensors {
    std::size_t count = 0;
    std::uint32_t first_rank = 0;  // The lowest ones that have it.
    std::uint32_t second_rank = 0;
    std::optional<plan::HeldPiece> of_reader;
    std::optional<plan::HeldPiece> of_another;  // As long as no other rank has one.
    bool are_several() const { return count > 1; }
  };
  // By name, as shards have it.
  struct Name {
    std::string_view tensor;  // The whole of which it is a part.
    SeenForms piece_forms;
    SeenForms whole_forms;         // All ranks saved whole tensors of these forms,
    SeenForms reader_whole_forms;  // and the reader's shard has one of this form.
    WholeTensors whole_tensors;
    bool has_reader = false;  // The reader's shard has it, or a part of it.
    std::map<std::vector<std::uint64_t>, Copies> regions;
  };
  struct KeptRecord {
    std::shared_ptr<const format::ShardRecord> record;
    std::size_t reasons = 0;  // To keep it.
  };
  using FirstError = std::optional<std::pair<std::uint32_t, Error>>;  // With its rank.

  void add_tensor(std::uint32_t rank, const format::TensorPlace& tensor);
  void add_whole(Name& name, plan::HeldPiece piece);
  void keep(Name& name, plan::HeldPiece piece);
  void release(std::uint32_t rank);
  bool is_wanted(const plan::HeldPiece& piece) const;
  bool is_better(std::uint32_t rank, std::uint32_t than) const;
  void check_shared(std::uint32_t rank, const std::vector<format::TensorPlace>& tensors);
  std::optional<std::string_view> newly_wanted() const;
  Status check_whole() const;
  Status add_forms(plan::PieceIndex& index) const;

  const ReaderRank reader_;
  const std::vector<plan::Holder> holders_;
  const std::uint32_t shard_count_;
  std::vector<std::string> names_;
  std::unordered_map<std::string_view, Name> found_;
  std::unordered_map<std::string_view, std::vector<const plan::Want*>> wants_;  // By tensor.
  std::map<std::string_view, std::string_view> shared_;  // The wanted name of each other one.
  std::map<std::uint32_t, KeptRecord> records_;
  FirstError unshared_;
  FirstError broken_;
  std::size_t piece_count_ = 0;
};

}  // namespace ckpt::gather
