// LastWhole: chooses the stored step that no deletion takes, because all newer ones lack more of
// the tensors that their ranks declared.
//
// It is the newest of the steps with holes in the fewest tensors. Retention and `ckpt gc` ask it.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "format/ids.hpp"

namespace ckpt::storage {

class LastWhole {
 public:
  // The newest first. `tensors`: how many lack elements; none: the step could not be looked
  // through.
  void add(format::StepId at, std::optional<std::size_t> tensors);
  bool is_found() const { return fewest_ == 0; }  // No older step is better.
  // Where none could be looked through, the one before the newest may be the whole one. None: no
  // step was added.
  std::optional<format::StepId> step() const;
  bool is_newest() const { return !first_.empty() && step() == first_.front(); }

 private:
  std::vector<format::StepId> first_;  // The newest two.
  std::optional<std::size_t> fewest_;
  std::optional<format::StepId> best_;
};

}  // namespace ckpt::storage
