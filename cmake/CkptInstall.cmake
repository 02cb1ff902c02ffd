# Installs the library, its headers, the programs, and the files that find_package(ckpt) reads.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ckpt)

install(TARGETS ckpt EXPORT ckptTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILE_SET c_abi DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT ckptTargets NAMESPACE ckpt:: DESTINATION ${package_dir})

foreach(program ckptd ckpt_tool)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()

configure_package_config_file(cmake/ckptConfig.cmake.in
  ${PROJECT_BINARY_DIR}/cmake/ckptConfig.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may break what was.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/ckptConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/cmake/ckptConfig.cmake ${PROJECT_BINARY_DIR}/cmake/ckptConfigVersion.cmake
  DESTINATION ${package_dir})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
