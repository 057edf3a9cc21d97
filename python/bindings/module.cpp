// The extension module attn._attn: what python/attn is built on. Not for users.
#include <nanobind/nanobind.h>

#include "errors.hpp"
#include "operations.hpp"

NB_MODULE(_attn, module) {
  // Options and plans in globals of a program live until its end, as they should.
  nanobind::set_leak_warnings(false);
  attn::python::translate_errors();
  attn::python::bind_operations(module);
  attn::python::bind_caches(module);
  attn::python::bind_information(module);
  attn::python::bind_dist(module);
  attn::python::bind_jax(module);
#ifdef ATTN_COMMAND
  attn::python::bind_command(module);
#endif
}
