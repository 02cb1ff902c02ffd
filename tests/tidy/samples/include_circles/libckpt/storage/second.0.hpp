// Second: a header that needs the first. The circle is reported once, at its first file.
#pragma once

#include "storage/first.1.hpp"
