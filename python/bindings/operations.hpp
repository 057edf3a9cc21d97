// What the module _attn has.
#pragma once

#include <nanobind/nanobind.h>

namespace attn::python {

void bind_operations(nanobind::module_& module);
void bind_caches(nanobind::module_& module);
void bind_information(nanobind::module_& module);
void bind_dist(nanobind::module_& module);
void bind_jax(nanobind::module_& module);
void bind_command(nanobind::module_& module);

}  // namespace attn::python
