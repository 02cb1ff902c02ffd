#include "instructions.hpp"

#include <atomic>

namespace nb = nanobind;

namespace ckpt::python {

namespace {

std::atomic<std::uint64_t> passes{0};

int count_pass(void*) {
  ++passes;
  return 0;
}

// Python makes the object of a running frame when it is asked for it. If the garbage collector ran
// in the midst of that, a finalizer could let the frame's own thread go on: Python 3.11 then ties
// the object to a frame that is gone, and writes past its end later, or waits for itself for ever.
class NoCollection {
 public:
  NoCollection() : was_enabled_(PyGC_Disable() != 0) {}
  NoCollection(const NoCollection&) = delete;
  NoCollection& operator=(const NoCollection&) = delete;
  ~NoCollection() {
    if (was_enabled_) PyGC_Enable();
  }

 private:
  const bool was_enabled_;
};

}  // namespace

bool ask_main_thread() {
  return Py_AddPendingCall(&count_pass, nullptr) == 0;
}

std::uint64_t main_thread_passes() {
  return passes;
}

nb::list instructions(const std::vector<unsigned long>& threads) {
  const NoCollection none;
  nb::list found;
  // No instruction of Python is executed until all of it was read, so that no thread gets on.
  const nb::object frames = nb::module_::import_("sys").attr("_current_frames")();
  for (const unsigned long thread : threads) {
    const nb::object frame = frames.attr("get")(thread);
    if (frame.is_none()) {
      found.append(nb::none());
    } else {
      const auto place = reinterpret_cast<std::uintptr_t>(frame.ptr());
      found.append(nb::make_tuple(place, frame.attr("f_lasti")));
    }
  }
  return found;
}

}  // namespace ckpt::python
