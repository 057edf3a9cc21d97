# cmake -DBUILD_DIR=... -DWORK_DIR=... -P run.cmake: install, find_package, build, run; then the same
# through pkg-config where it is installed.
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(prefix ${WORK_DIR}/prefix)
if(SANITIZE)
  string(APPEND CXX_FLAGS " -fsanitize=${SANITIZE}")
  set(C_FLAGS -fsanitize=${SANITIZE})
endif()
file(REMOVE_RECURSE ${WORK_DIR})

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})

# The man page and the completions of the command that is installed.
file(GLOB command ${prefix}/bin/attn)
foreach(text man/man1/attn.1:man bash-completion/completions/attn:bash
        zsh/site-functions/_attn:zsh fish/vendor_completions.d/attn.fish:fish)
  if(NOT command)
    break()
  endif()
  string(REPLACE ":" ";" text ${text})
  list(POP_BACK text kind)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${prefix}/lib:${prefix}/lib64
                          ${command} generate ${kind}
                  OUTPUT_VARIABLE expected COMMAND_ERROR_IS_FATAL ANY)
  file(READ ${prefix}/share/${text} installed)
  if(NOT installed STREQUAL expected)
    message(FATAL_ERROR "share/${text} is not what 'attn generate ${kind}' prints")
  endif()
endforeach()

run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${WORK_DIR}/build -G ${GENERATOR}
    -DCMAKE_CXX_COMPILER=${CXX} "-DCMAKE_CXX_FLAGS=${CXX_FLAGS}" "-DCMAKE_C_COMPILER=${CC}" "-DCMAKE_C_FLAGS=${C_FLAGS}" -DCMAKE_PREFIX_PATH=${prefix}
    -DEXPECTED_VERSION=${VERSION})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build)
run(${WORK_DIR}/build/consumer)
run(${WORK_DIR}/build/consumer_c)

find_program(PKG_CONFIG pkg-config)
if(NOT PKG_CONFIG)
  message(STATUS "pkg-config is not installed: attn.pc is not tested")
  return()
endif()
file(GLOB_RECURSE pc_file ${prefix}/*/attn.pc)
cmake_path(GET pc_file PARENT_PATH pc_dir)
cmake_path(GET pc_dir PARENT_PATH lib_dir)
set(ENV{PKG_CONFIG_PATH} ${pc_dir})
execute_process(COMMAND ${PKG_CONFIG} --cflags --libs attn OUTPUT_VARIABLE flags
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(cxx_flags UNIX_COMMAND "${CXX_FLAGS} ${flags} -Wl,-rpath,${lib_dir}")
run(${CXX} -std=c++20 ${CMAKE_CURRENT_LIST_DIR}/consumer/main.cpp -o ${WORK_DIR}/by_pkg_config ${cxx_flags})
run(${WORK_DIR}/by_pkg_config)
separate_arguments(c_flags UNIX_COMMAND "${C_FLAGS} ${flags} -Wl,-rpath,${lib_dir}")
run(${CC} -std=c11 ${CMAKE_CURRENT_LIST_DIR}/consumer/main.c -o ${WORK_DIR}/by_pkg_config_c ${c_flags})
run(${WORK_DIR}/by_pkg_config_c)
