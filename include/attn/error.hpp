// The one exception type of the library.
#pragma once

#include <stdexcept>
#include <string>

#include "attn/export.hpp"

namespace ATTN_API attn {

enum class ErrorCode {
  invalid_argument,  // an argument contradicts its contract; nothing was written
  unsupported,    // well-formed, but no kernel of the chosen backend takes it; nothing was written
  unavailable,    // the backend or instruction set asked for is not present on this machine
  out_of_memory,  // workspace could not be allocated; nothing was written
  device,    // the driver of a device refused a call or reported an error of earlier work there;
             // outputs may be written in part
  io,        // a file could not be read or written, or its content is malformed
  internal,  // a broken invariant of the library: please report it
};

// what() is one sentence that names the argument, its value and what is accepted.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace attn
