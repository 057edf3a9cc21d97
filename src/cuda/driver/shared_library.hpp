// dlopen, for the two libraries of CUDA.
#pragma once

#include <string>

namespace attn::cuda {

// Never closed: driver and compiler keep threads and exit handlers.
struct SharedLibrary {
  void* handle = nullptr;
  std::string path;   // the file that was found
  std::string error;  // dlerror(), where nothing was
};

SharedLibrary open_library(const std::string& name);
// null when the library lacks it.
void* find_symbol(const SharedLibrary& library, const char* symbol);

}  // namespace attn::cuda
