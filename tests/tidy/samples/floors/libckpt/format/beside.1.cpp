#include "os/fd.hpp"
