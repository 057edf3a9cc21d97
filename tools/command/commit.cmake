# Writes OUTPUT, a header with the commit of SOURCE_DIR, "unknown" outside a git checkout.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git describe --always --dirty --abbrev=12
                WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE commit ERROR_QUIET
                OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT
"#pragma once

namespace attn::command {
inline constexpr const char* kCommit = \"@commit@\";
}  // namespace attn::command
" @ONLY)
