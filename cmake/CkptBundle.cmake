# The target `bundle`: one relocatable archive for machines without packages, air-gapped ones among
# them: what is installed, and every library that is not glibc's beside it.
#
#   cmake --build --preset release --target bundle  ->  build/release/libckpt-VERSION-x86_64.tar.gz
#
# The suite and the benchmark for GPUs go along where they are built (CKPT_BUNDLE_GPU), the Python
# package where the environment's CKPT_BUNDLE_PYTHON names a Python that has nanobind.
set(bundle_programs "")
set(bundle_targets ckpt)
foreach(program ckptd ckpt_tool)
  if(TARGET ${program})
    list(APPEND bundle_targets ${program})
  endif()
endforeach()
foreach(program gpu bench_gpu)
  if(TARGET ${program})
    list(APPEND bundle_targets ${program})
    list(APPEND bundle_programs $<TARGET_FILE:${program}>)
    # They are copied, not installed.
    set_property(TARGET ${program} APPEND PROPERTY
      BUILD_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  endif()
endforeach()

set(bundle_name libckpt-${PROJECT_VERSION}-${CMAKE_SYSTEM_PROCESSOR})
add_custom_target(bundle
  COMMAND ${CMAKE_COMMAND} -E env CKPT_CMAKE=${CMAKE_COMMAND}
    bash ${PROJECT_SOURCE_DIR}/cmake/bundle.sh
    ${PROJECT_BINARY_DIR} ${bundle_name} ${CMAKE_INSTALL_LIBDIR} ${bundle_programs}
  DEPENDS ${bundle_targets}
  VERBATIM COMMENT "${bundle_name}.tar.gz")
