# Where a library is missing, the configuration stops with a sentence that says how to have it. Run by CTest.
function(expect_remedy library)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${WORK_DIR}/${library} -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX}
            -DATTN_BUILD_TESTS=OFF -DATTN_BUILD_EXAMPLES=OFF -DCMAKE_DISABLE_FIND_PACKAGE_${library}=ON
    RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE message)
  string(REGEX REPLACE "[ \n]+" " " message "${message}")
  if(code EQUAL 0)
    message(FATAL_ERROR "the configuration succeeds without ${library}")
  endif()
  foreach(part "attn needs ${library}" ${ARGN})
    string(FIND "${message}" "${part}" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "without ${library} the message lacks '${part}': ${message}")
    endif()
  endforeach()
endfunction()

set(without_command "-DATTN_BUILD_TOOLS=OFF")
expect_remedy(CLI11 "apt install libcli11-dev" ${without_command})
expect_remedy(nlohmann_json "apt install nlohmann-json3-dev" ${without_command})
