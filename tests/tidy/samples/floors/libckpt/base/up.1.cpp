#include "arena/slot.hpp"
