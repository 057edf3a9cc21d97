# Installs the library, its headers, the CMake package `attn`, attn.pc, and the command where it is built.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

get_target_property(attn_type attn TYPE)  # STATIC_LIBRARY or SHARED_LIBRARY
set(attn_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attn)

# Components: `runtime` is the shared library, `dev` what programs are built with, `command` the command and its texts.
install(TARGETS attn EXPORT attnTargets
        LIBRARY COMPONENT runtime NAMELINK_COMPONENT dev
        ARCHIVE COMPONENT dev
        RUNTIME COMPONENT runtime
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET attn_command)
  install(TARGETS attn_command COMPONENT command)
  get_property(attn_texts GLOBAL PROPERTY ATTN_COMMAND_TEXTS)
  if(attn_texts)
    install(FILES ${attn_texts}/attn.man DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 RENAME attn.1 COMPONENT command)
    install(FILES ${attn_texts}/attn.bash
            DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME attn COMPONENT command)
    install(FILES ${attn_texts}/attn.zsh
            DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _attn COMPONENT command)
    install(FILES ${attn_texts}/attn.fish
            DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT command)
  endif()
endif()
install(DIRECTORY include/attn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev FILES_MATCHING PATTERN "*.h*")
install(EXPORT attnTargets NAMESPACE attn:: DESTINATION ${attn_package_dir} COMPONENT dev)

configure_package_config_file(cmake/attnConfig.cmake.in ${PROJECT_BINARY_DIR}/attnConfig.cmake
                              INSTALL_DESTINATION ${attn_package_dir})
# Before 1.0 a program asks for the minor version that it was written for.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/attnConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/attnConfig.cmake ${PROJECT_BINARY_DIR}/attnConfigVersion.cmake
        DESTINATION ${attn_package_dir} COMPONENT dev)

set(attn_pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
# attn.pc finds the prefix from where it lies itself, so that an installed tree can be moved.
file(RELATIVE_PATH attn_pc_prefix /${attn_pc_dir} /)
if(attn_type STREQUAL "STATIC_LIBRARY")
  if(NOT attn_fmt_compiled_in)
    set(attn_pc_requires "Requires: fmt")
  endif()
  set(attn_pc_libs " -pthread")
  if("stdc++" IN_LIST CMAKE_CXX_IMPLICIT_LINK_LIBRARIES)
    string(APPEND attn_pc_libs " -lstdc++ -lm")  # which a C compiler does not add
  endif()
  set(attn_pc_cflags " -DATTN_STATIC")
endif()
configure_file(cmake/attn.pc.in ${PROJECT_BINARY_DIR}/attn.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/attn.pc DESTINATION ${attn_pc_dir} COMPONENT dev)
if(PROJECT_IS_TOP_LEVEL)
  include(packaging/debian.cmake)
endif()
