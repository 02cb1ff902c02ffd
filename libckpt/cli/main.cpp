// ckpt: the command line of libckpt. Exit codes: 0 all is well, 1 trouble was found, 2 wrong use.
#include <cstdio>
#include <exception>

#include "cli/command_line.hpp"

int main(int count, char** arguments) {
  try {
    return ckpt::cli::run(count, arguments);
  } catch (const std::exception& error) {  // In practice, out of memory.
    std::fprintf(stderr, "ckpt: %s\n", error.what());
    return 1;
  }
}
