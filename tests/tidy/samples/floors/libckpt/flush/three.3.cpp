#include <fcntl.h>
#include <mutex>

#include "replicate/placement.hpp"
#include "flush/flusher.hpp"
