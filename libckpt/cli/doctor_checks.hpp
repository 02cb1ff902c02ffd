// DoctorChecks: the checks of `ckpt doctor` on this machine, before the first step is trained.
#pragma once

#include <ckpt/options.hpp>
#include <string>
#include <vector>

namespace ckpt::cli {

struct Finding {
  enum class Grade { good, note, trouble };  // note: it works, and could work better.

  std::string name;
  Grade grade = Grade::good;
  std::string text;
  std::string advice;  // A remedy; empty: none is needed.
};

// Changes nothing, except that it writes and removes one file in the checkpoint directory.
std::vector<Finding> examine(const Options& options);

}  // namespace ckpt::cli
