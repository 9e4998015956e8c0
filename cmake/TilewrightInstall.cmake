# cmake --install: the library, its headers, and the package that find_package(tilewright) reads.
# The command line's own install rule lies in cli/CMakeLists.txt.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tilewright)

install(TARGETS tilewright EXPORT tilewright_targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/tilewright ${PROJECT_BINARY_DIR}/include/tilewright
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT tilewright_targets NAMESPACE tilewright:: DESTINATION ${package_dir}
  FILE tilewright-targets.cmake)

configure_package_config_file(cmake/tilewright-config.cmake.in
  ${PROJECT_BINARY_DIR}/tilewright-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tilewright-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/tilewright-config.cmake
  ${PROJECT_BINARY_DIR}/tilewright-config-version.cmake
  DESTINATION ${package_dir})
