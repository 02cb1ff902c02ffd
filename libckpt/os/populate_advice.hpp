// PopulateAdvice: the advice to madvise that gives memory its pages, from Linux 5.14 on; older
// headers lack it.
#pragma once

#include <sys/mman.h>

namespace ckpt::os {

#ifndef MADV_POPULATE_READ
inline constexpr int MADV_POPULATE_READ = 22;
inline constexpr int MADV_POPULATE_WRITE = 23;
#endif

}  // namespace ckpt::os
