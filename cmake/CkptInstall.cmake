# Installs the library, its headers, the programs, and the files that find_package(ckpt) and
# pkg-config read.
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
# A static library would need what it is built on, in the words of each distribution.
if(BUILD_SHARED_LIBS AND NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  file(RELATIVE_PATH pc_to_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
  configure_file(cmake/ckpt.pc.in ${PROJECT_BINARY_DIR}/cmake/ckpt.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/cmake/ckpt.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
