// ProgramPath: where the programs lie that tests start: in bin/ of the build, unless the mutation
// gate, which links them anew with a mistake in them, says otherwise.
#pragma once

#include <cstdlib>
#include <string>

namespace ckpt::test {

inline std::string program_path(const std::string& name) {
  const char* elsewhere = std::getenv("CKPT_TEST_PROGRAMS");
  return std::string(elsewhere != nullptr ? elsewhere : CKPT_BIN_DIR) + "/" + name;
}

}  // namespace ckpt::test
