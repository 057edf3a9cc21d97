# attn_require(NAME PACKAGE REMEDY ...): finds a library that is needed, or says how to have it.
function(attn_require name package remedy)
  find_package(${name} ${ARGN} QUIET GLOBAL)
  if(NOT ${name}_FOUND)
    string(STRIP "${name} ${ARGN}" wanted)
    message(FATAL_ERROR
      "attn needs ${wanted}, which was not found: install it (Debian: apt install ${package}), or name its "
      "folder by CMAKE_PREFIX_PATH${remedy}")
  endif()
endfunction()
