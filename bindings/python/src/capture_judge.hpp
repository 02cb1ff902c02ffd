// CaptureJudge: asks Python about each capture whose last byte was copied, on a thread of its own.
//
// Native, so that neither the interpreter's end nor a fork knows of it: `threading` waits for
// nobody, and in a forked worker there is none.
//
// Threads:   any; start() and join() on those of Python.
// Lifetime:  join() before the interpreter ends; the thread outlives the object without harm.
#pragma once

#include <nanobind/nanobind.h>
#include <sys/types.h>

#include <ckpt/tensor.hpp>
#include <memory>

namespace ckpt::python {

class CaptureJudge {
 public:
  CaptureJudge();
  ~CaptureJudge();
  CaptureJudge(const CaptureJudge&) = delete;
  CaptureJudge& operator=(const CaptureJudge&) = delete;

  // `judge(step)` is called for the newest step that was added, each once. Once.
  void start(nanobind::callable judge);
  void add(Step copied);
  void end();   // None is judged any more.
  void join();  // After end(), without the GIL: until the thread has let go of `judge`.

 private:
  struct State;
  static void run(std::shared_ptr<State> state, nanobind::callable judge);

  const std::shared_ptr<State> state_;
  pid_t process_ = 0;  // That has the thread; 0: not started.
};

}  // namespace ckpt::python
