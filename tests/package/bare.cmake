# A package of Python asks for a compiler and Python: where fmt, CLI11 and nlohmann-json are missing, the configuration takes
# fmt's headers from third_party/ and leaves the command out, and no file of the library reads a header of another library.
# Run by CTest.
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${WORK_DIR} -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX}
          -DATTN_BUILD_TOOLS=IF_FOUND -DATTN_BUILD_TESTS=OFF -DATTN_BUILD_EXAMPLES=OFF
          -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON
          -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
  OUTPUT_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
string(FIND "${said}" "the attn command is left out" at)
if(at EQUAL -1)
  message(FATAL_ERROR "the configuration does not say that the command is left out: ${said}")
endif()

# What the library is compiled from, by the compiler's own account.
file(STRINGS ${WORK_DIR}/compile_commands.json commands REGEX "\"command\"")
set(files 0)
foreach(line IN LISTS commands)
  if(line MATCHES "CMakeFiles/attn.dir/")
    math(EXPR files "${files} + 1")
    if(NOT line MATCHES "-isystem [^ ]*third_party/fmt/include")
      message(FATAL_ERROR "a file of the library is not told where fmt's headers are: ${line}")
    endif()
  endif()
endforeach()
if(files LESS 30)
  message(FATAL_ERROR "${files} commands compile the library; expected are more")
endif()

# One file of each kind that reads fmt, with the system's own headers hidden.
file(MAKE_DIRECTORY ${WORK_DIR}/hidden/fmt)
foreach(header core.h format.h ranges.h)
  file(WRITE ${WORK_DIR}/hidden/fmt/${header} "#error the header of the system is read\n")
endforeach()
foreach(source cmake/fmt.cpp src/core/text/names.cpp src/cuda/plan/choose_forward.cpp)
  execute_process(
    COMMAND ${CXX} -std=c++20 -fsyntax-only -I${SOURCE_DIR}/include -I${SOURCE_DIR}/src
            -isystem ${SOURCE_DIR}/third_party/fmt/include -isystem ${WORK_DIR}/hidden ${SOURCE_DIR}/${source}
    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
message(STATUS "${files} files")
