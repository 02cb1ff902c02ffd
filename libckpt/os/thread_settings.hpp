// ThreadSettings: the name of the calling thread, and how little of the machine it claims.
#pragma once

#include <ckpt/result.hpp>
#include <string_view>

namespace ckpt::os {

// Cut to the 15 characters that the kernel keeps.
void set_thread_name(std::string_view name);

// For work that must give way to everything: the lowest nice and the idle class of the disk.
// Errors: io; the thread then runs as before.
Status make_thread_idle();

}  // namespace ckpt::os
