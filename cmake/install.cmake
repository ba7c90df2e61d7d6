# Install rules: the headers and a package that `find_package(mend)` finds.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir ${CMAKE_INSTALL_DATADIR}/cmake/mend)
install(TARGETS mend EXPORT mendTargets FILE_SET HEADERS)
install(EXPORT mendTargets NAMESPACE mend:: DESTINATION ${package_dir})

configure_package_config_file(
  cmake/mendConfig.cmake.in ${PROJECT_BINARY_DIR}/mendConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/mendConfigVersion.cmake
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(
  FILES ${PROJECT_BINARY_DIR}/mendConfig.cmake ${PROJECT_BINARY_DIR}/mendConfigVersion.cmake
  DESTINATION ${package_dir})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
