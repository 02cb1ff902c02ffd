// Only leads to a circle.
#include "storage/first.1.hpp"
