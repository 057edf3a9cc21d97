# cmake -DFOLDER=<folder> -DOUTPUT=<file.cpp> -P EmbedHeaders.cmake
# Writes the text of every .cuh file under FOLDER, and one hash of them all, into a C++ source.
file(GLOB_RECURSE headers RELATIVE ${FOLDER} ${FOLDER}/*.cuh)
list(SORT headers)
set(all "")
set(entries "")
set(count 0)
foreach(name IN LISTS headers)
  file(READ ${FOLDER}/${name} text)
  if(text MATCHES "\\)attn_text\"")
    message(FATAL_ERROR "${FOLDER}/${name} contains )attn_text\", which ends the string it is put into")
  endif()
  string(SHA256 hash "${text}")
  string(APPEND all "${name} ${hash}\n")
  string(APPEND entries "    {\"${name}\", R\"attn_text(${text})attn_text\"},\n")
  math(EXPR count "${count} + 1")
endforeach()
string(SHA256 hash "${all}")
set(template [=[
// Made by cmake/EmbedHeaders.cmake.
#include "cuda/jit/source.hpp"

namespace attn::cuda {
namespace {

constexpr EmbeddedHeader kHeaders[] = {
@entries@    {nullptr, nullptr},
};
constexpr EmbeddedHeaders kAll{kHeaders, @count@, "@hash@"};

}  // namespace

const EmbeddedHeaders& embedded_headers() { return kAll; }

}  // namespace attn::cuda
]=])
string(CONFIGURE "${template}" source @ONLY)
file(WRITE ${OUTPUT} "${source}")
