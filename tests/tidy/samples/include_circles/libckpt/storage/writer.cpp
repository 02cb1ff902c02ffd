#include "storage/writer.hpp"

#include "storage/shape.1.hpp"
