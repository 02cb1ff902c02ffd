// First: a header that needs the second.
#pragma once

#include "storage/second.0.hpp"
