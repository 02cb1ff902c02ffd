// KillPoint: labelled places where a test may kill, stop or fail the process.
//
// CKPT_POINT("flush.manifest.after_rename") does nothing unless LIBCKPT_POINTS names the label, as
// in "flush.rename.before=kill@3;save.begin=log". Labels that were hit are appended to
// LIBCKPT_POINTS_LOG, so that the crash suite can require that every label was hit.
#pragma once

#include <atomic>
#include <string_view>

namespace ckpt {

namespace detail {
extern std::atomic<bool> points_armed;  // Set at start-up, from the environment.
void hit_point(std::string_view label);
}  // namespace detail

}  // namespace ckpt

// `label` is a literal: tests/crash lists the labels by reading the sources.
#define CKPT_POINT(label)                                                          \
  do {                                                                             \
    if (::ckpt::detail::points_armed.load(std::memory_order_relaxed)) [[unlikely]] \
      ::ckpt::detail::hit_point(label);                                            \
  } while (false)
