# cmake -DFOLDER=<folder> -DPATTERNS=<*.a,*.b> -DOUTPUT=<file.cpp> -DFUNCTION=<name> -DNAMESPACE=<a::b>
#       -DDECLARED_IN=<header> -P EmbedFiles.cmake
# Writes the text of every file under FOLDER that fits a pattern, and one hash of them all, into a C++
# source that defines FUNCTION, which gives them as core::EmbeddedFiles.
string(REPLACE "," ";" patterns "${PATTERNS}")
list(TRANSFORM patterns PREPEND "${FOLDER}/")
file(GLOB_RECURSE files RELATIVE ${FOLDER} ${patterns})
list(SORT files)
set(all "")
set(entries "")
set(count 0)
foreach(name IN LISTS files)
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
// Made by cmake/EmbedFiles.cmake.
#include "@DECLARED_IN@"

namespace @NAMESPACE@ {
namespace {

constexpr core::EmbeddedFile kFiles[] = {
@entries@    {nullptr, nullptr},
};
constexpr core::EmbeddedFiles kAll{kFiles, @count@, "@hash@"};

}  // namespace

const core::EmbeddedFiles& @FUNCTION@() { return kAll; }

}  // namespace @NAMESPACE@
]=])
string(CONFIGURE "${template}" source @ONLY)
file(WRITE ${OUTPUT} "${source}")
