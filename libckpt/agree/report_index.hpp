// ReportIndex: the holders of each shard, by step and rank, from the reports of live nodes.
//
// It is updated one report at a time: a change of one node costs time for that node's holdings, and
// not for all. If copies of a shard disagree, those of the rank's own node are believed. Copies
// that another number of ranks made are kept apart.
//
// Threads: one. Pure.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "agree/job_shape.hpp"
#include "format/agreement.hpp"

namespace ckpt::agree {

// Copies of one shard on live nodes.
struct Copies {
  Digest digest;
  std::vector<std::string> nodes;  // The rank's own node first, then as in the job's list.
  bool has_own = false;
  std::size_t domains = 0;  // Distinct failure domains among them.
  Digest model;             // The layout's.
};

// StepCopies: by rank; shared with the index until the index changes.
class StepCopies {
 public:
  using List = std::vector<std::optional<Copies>>;

  explicit StepCopies(std::shared_ptr<const List> list) : list_(std::move(list)) {}
  const std::optional<Copies>& operator[](std::size_t rank) const { return (*list_)[rank]; }
  List::const_iterator begin() const { return list_->begin(); }
  List::const_iterator end() const { return list_->end(); }
  std::size_t size() const { return list_->size(); }

 private:
  std::shared_ptr<const List> list_;
};

class ReportIndex {
 public:
  explicit ReportIndex(const JobShape& shape);

  void add(const format::NodeReport& report);
  void remove(const format::NodeReport& report);  // Exactly as it was added.

  // `world_size`: the number of ranks that made them.
  StepCopies copies_of(format::StepId at, std::uint32_t world_size) const;
  std::vector<format::StepId> steps() const;  // By the job's number of ranks; ascending.
  // Those of other numbers, and these numbers; ascending.
  struct OfOthers {
    format::StepId at;
    std::uint32_t world_size = 0;
  };
  std::vector<OfOthers> steps_of_others() const;

 private:
  struct Position {  // A node's, in the list.
    std::size_t number = 0;
    std::size_t domain = 0;
  };
  struct Holder {
    std::string node;
    Position position;
    Digest digest;
    bool is_own = false;
    Digest model;
  };
  struct StepHolders {
    std::vector<std::vector<Holder>> holders;  // By rank, the most trusted first.
    std::shared_ptr<StepCopies::List> copies;
    std::size_t count = 0;  // Number of holders.
  };

  using Key = std::pair<format::StepId, std::uint32_t>;  // With the number of ranks.

  Position position_of(const std::string& node) const;
  static void update(StepHolders& step, std::uint32_t rank);

  std::uint32_t world_size_;
  std::unordered_map<std::string, Position> positions_;
  std::map<Key, StepHolders> steps_;
};

}  // namespace ckpt::agree
