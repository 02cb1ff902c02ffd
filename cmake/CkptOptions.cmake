# Options of the build, each with a default that suits whoever is on top.
include(GNUInstallDirs)

option(CKPT_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(CKPT_BUILD_BENCH "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(CKPT_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(CKPT_BUILD_TOOLS "Build ckptd and ckpt" ON)
option(CKPT_INSTALL "Make the rules that install libckpt" ${PROJECT_IS_TOP_LEVEL})
option(CKPT_BUNDLE_GPU "Let a bundle have the suite and the benchmark for GPUs, by Catch2" OFF)
option(CKPT_WERROR "Turn warnings into errors" ${PROJECT_IS_TOP_LEVEL})
option(CKPT_PRECOMPILED_HEADER "Share one precompiled header" ON)
option(BUILD_SHARED_LIBS "Build libckpt as a shared library" ON)
set(CKPT_SANITIZE "" CACHE STRING "Sanitizers, as for -fsanitize=")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(CKPT_CCACHE ccache)
if(CKPT_CCACHE AND PROJECT_IS_TOP_LEVEL)
  # The sloppiness lets ccache cache users of a precompiled header; ckpt_flags has the other half.
  set(sloppiness pch_defines,time_macros,include_file_mtime,include_file_ctime)
  foreach(language C CXX)
    set(CMAKE_${language}_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=${sloppiness} ${CKPT_CCACHE})
  endforeach()
endif()
