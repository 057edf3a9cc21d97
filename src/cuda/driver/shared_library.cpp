#include "cuda/driver/shared_library.hpp"

#include <dlfcn.h>
#include <link.h>

namespace attn::cuda {

SharedLibrary open_library(const std::string& name) {
  SharedLibrary library;
  library.handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library.handle == nullptr) {
    const char* error = dlerror();
    library.error = error != nullptr ? error : "dlopen gave no reason";
    return library;
  }
  link_map* map = nullptr;
  library.path = dlinfo(library.handle, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0'
                     ? map->l_name
                     : name;
  return library;
}

void* find_symbol(const SharedLibrary& library, const char* symbol) {
  return dlsym(library.handle, symbol);
}

}  // namespace attn::cuda
