# libnibble as others use it: shared and static, headers, a pkg-config file and a CMake package.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Only what the public headers declare is exported: they say so with a visibility pragma, everything else is hidden.
if(NOT NIB_FUZZ)
  add_library(nibble_shared SHARED $<TARGET_OBJECTS:nib_objects>)
  target_link_libraries(nibble_shared PRIVATE nib_build)
  set_target_properties(nibble_shared PROPERTIES OUTPUT_NAME nibble EXPORT_NAME nibble
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  target_include_directories(nibble_shared INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  install(TARGETS nibble_shared EXPORT nibble)
endif()

# Whoever links the static library also needs what it stands on; the OpenMP library is the one it was compiled for.
set_target_properties(nibble_static PROPERTIES EXPORT_NAME static)
target_include_directories(nibble_static INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
set(nib_static_needs ${JANSSON_LINK_LIBRARIES} ${PCRE2_LINK_LIBRARIES} ${UTF8PROC_LINK_LIBRARIES} ${OpenMP_C_LIBRARIES} m)
if(NIB_WITH_CUDA)
  list(APPEND nib_static_needs ${CUDA_cudart_static_LIBRARY} stdc++ dl rt pthread)
endif()
foreach(library ${nib_static_needs})
  target_link_libraries(nibble_static INTERFACE $<INSTALL_INTERFACE:${library}>)
endforeach()
install(TARGETS nibble_static EXPORT nibble)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/nibble DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

set(nib_package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/nibble)
install(EXPORT nibble FILE nibbleConfig.cmake NAMESPACE nibble:: DESTINATION ${nib_package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/nibbleConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/nibbleConfigVersion.cmake DESTINATION ${nib_package_folder})

# The prefix is written relative to the file, so that `cmake --install --prefix` may choose another one.
file(RELATIVE_PATH nib_pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
list(JOIN OpenMP_C_LIBRARIES " " nib_openmp)
if(NIB_WITH_CUDA)
  set(nib_cuda_libs " ${CUDA_cudart_static_LIBRARY} -lstdc++ -ldl -lrt")
endif()
configure_file(nibble.pc.in ${PROJECT_BINARY_DIR}/nibble.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/nibble.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
