# Choices that only the top-level project may make, because they reach every target.
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()

if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(ATTN_CCACHE ccache)
  if(ATTN_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${ATTN_CCACHE})
  endif()
endif()

if(ATTN_SANITIZE)
  add_compile_options(-fsanitize=${ATTN_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${ATTN_SANITIZE})
  # A null pointer that is read ends the program without a check, and AddressSanitizer knows the sizes of objects; these checks
  # are a third of what a file takes to compile.
  if(ATTN_SANITIZE MATCHES undefined)
    add_compile_options(-fno-sanitize=null,object-size,vptr)
  endif()
endif()
