// The one Catch2 main; compiled once, since it is the slowest file of all.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
