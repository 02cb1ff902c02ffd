// Shape: a header that needs another one, whose source needs this.
#pragma once

#include "storage/writer.hpp"
