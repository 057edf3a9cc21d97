// The extension module attn._attn: what python/attn is built on. Not for users.
#include <nanobind/nanobind.h>

#include "errors.hpp"
#include "operations.hpp"

NB_MODULE(_attn, module) {
  attn::python::translate_errors();
  attn::python::bind_operations(module);
  attn::python::bind_information(module);
}
