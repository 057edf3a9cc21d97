// Attributes of Python's modules that calls look up once.
#pragma once

#include <nanobind/nanobind.h>

#include "core/first_made.hpp"

namespace attn::python {

// For static variables, as `static constinit KeptAttribute name("module", "attribute")`. Never
// freed, as Python may be gone by then. An import may hand the interpreter to another thread, which
// must not wait here for the first one: so several threads may look it up at the same time.
class KeptAttribute {
 public:
  constexpr KeptAttribute(const char* module, const char* name) : module_(module), name_(name) {}

  // Throws nanobind::python_error where there is none, and the next call looks again.
  nanobind::handle get() {
    return made_.get([&] {
      return nanobind::object(nanobind::module_::import_(module_).attr(name_)).release();
    });
  }

 private:
  const char* module_;
  const char* name_;
  core::FirstMade<nanobind::handle> made_{};
};

}  // namespace attn::python
