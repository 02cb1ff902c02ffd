// Instructions: whether threads of Python have got on: what they had begun has ended then.
//
// Threads:   whoever has the GIL, which is kept.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

namespace ckpt::python {

// Asks the main thread to count a pass between two instructions. False: ask again later.
bool ask_main_thread();
std::uint64_t main_thread_passes();

// What each of the threads executes, a tuple that is another one once it got on; None: it has
// ended. Not for the main thread: it is asked, which leaves the interpreter's frames alone.
nanobind::list instructions(const std::vector<unsigned long>& threads);

}  // namespace ckpt::python
