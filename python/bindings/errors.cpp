#include "errors.hpp"

#include <nanobind/nanobind.h>

#include <exception>
#include <new>

#include "attn/error.hpp"

namespace attn::python {
namespace {

namespace nb = nanobind;

const char* class_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "InvalidArgument";
    case ErrorCode::unsupported:
      return "Unsupported";
    case ErrorCode::unavailable:
      return "Unavailable";
    case ErrorCode::out_of_memory:
      return "OutOfMemory";
    case ErrorCode::device:
      return "DeviceError";
    case ErrorCode::io:
      return "FileError";
    case ErrorCode::internal:
      return "InternalError";
  }
  return "InternalError";
}

void raise(ErrorCode code, const char* message) {
  const nb::object type = nb::module_::import_("attn.errors").attr(class_name(code));
  PyErr_SetString(type.ptr(), message);
}

}  // namespace

void translate_errors() {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      raise(error.code(), error.what());
    } catch (const std::bad_alloc&) {
      raise(ErrorCode::out_of_memory, "memory for the call could not be allocated");
    }
  });
}

}  // namespace attn::python
