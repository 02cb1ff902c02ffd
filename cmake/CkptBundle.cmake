# The target `bundle`: one relocatable archive for machines without packages, such as air-gapped
# ones. It holds the installed files, and beside them every library that is not glibc's.
#
#   cmake --build --preset release --target bundle  ->  build/release/libckpt-VERSION-x86_64.tar.gz
#
# CKPT_BUNDLE_GPU adds the suite and the benchmark for GPUs, if Catch2 can be found to build them.
# The environment's CKPT_BUNDLE_PYTHON names a Python with nanobind, and adds the Python package.
if(CKPT_BUNDLE_GPU)
  find_package(Catch2 2.13 QUIET)
  if(Catch2_FOUND AND NOT CKPT_BUILD_BENCH)
    add_subdirectory(${PROJECT_SOURCE_DIR}/bench bench EXCLUDE_FROM_ALL)
  endif()
  if(Catch2_FOUND AND NOT CKPT_BUILD_TESTS)
    add_subdirectory(${PROJECT_SOURCE_DIR}/tests tests EXCLUDE_FROM_ALL)
  endif()
endif()

set(bundle_programs "")
set(bundle_targets ckpt)
foreach(program ckptd ckpt_tool)
  if(TARGET ${program})
    list(APPEND bundle_targets ${program})
    set_property(TARGET ${program} APPEND PROPERTY INSTALL_RPATH "${CMAKE_INSTALL_RPATH}"
      "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}/runtime")
  endif()
endforeach()
foreach(program gpu bench_gpu)
  if(TARGET ${program})
    list(APPEND bundle_targets ${program})
    list(APPEND bundle_programs $<TARGET_FILE:${program}>)
    # They are copied, not installed.
    set_property(TARGET ${program} APPEND PROPERTY
      BUILD_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}"
      "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}/runtime")
  endif()
endforeach()

set(bundle_name libckpt-${PROJECT_VERSION}-${CMAKE_SYSTEM_PROCESSOR})
add_custom_target(bundle
  COMMAND ${CMAKE_COMMAND} -E env CKPT_CMAKE=${CMAKE_COMMAND}
    bash ${PROJECT_SOURCE_DIR}/cmake/bundle.sh
    ${PROJECT_BINARY_DIR} ${bundle_name} ${CMAKE_INSTALL_LIBDIR} ${bundle_programs}
  DEPENDS ${bundle_targets}
  VERBATIM COMMENT "${bundle_name}.tar.gz")
