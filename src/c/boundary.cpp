#include "c/boundary.hpp"

#include <string>

namespace attn::c {
namespace {

thread_local std::string last_error;  // NOLINT(readability-identifier-naming): not a constant

}  // namespace

attn_status fail(attn_status status, const char* message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();  // there is no memory for the message
  }
  return status;
}

attn_status status_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument:
      return ATTN_INVALID_ARGUMENT;
    case ErrorCode::unsupported:
      return ATTN_UNSUPPORTED;
    case ErrorCode::unavailable:
      return ATTN_UNAVAILABLE;
    case ErrorCode::out_of_memory:
      return ATTN_OUT_OF_MEMORY;
    case ErrorCode::device:
      return ATTN_DEVICE;
    case ErrorCode::io:
      return ATTN_IO;
    case ErrorCode::internal:
      break;
  }
  return ATTN_INTERNAL;
}

void refuse(const std::string& message) { throw Error(ErrorCode::invalid_argument, message); }

void check_size(std::string_view name, std::uint64_t given, std::size_t first) {
  if (given >= first && given <= kMostSize) return;
  refuse("struct_size of " + std::string(name) + " is " + std::to_string(given) +
         "; accepted is sizeof of the structure in attn.h, " + std::to_string(first) + " to " +
         std::to_string(kMostSize));
}

void check_unknown(std::string_view name, const void* structure, std::uint64_t given,
                   std::size_t known) {
  for (std::size_t i = known; i < given; ++i) {
    if (static_cast<const unsigned char*>(structure)[i] != 0) {
      refuse(std::string(name) + " has a member at byte " + std::to_string(i) +
             " that is not zero; accepted by attn " ATTN_VERSION_STRING
             " are members in its first " +
             std::to_string(known) + " bytes");
    }
  }
}

void give_text(std::string_view whole, char* text, std::size_t capacity, std::size_t* length) {
  if (text == nullptr && capacity > 0) {
    refuse("text is a null pointer and capacity is " + std::to_string(capacity) +
           "; accepted with a null pointer is 0");
  }
  if (capacity > 0) {
    const std::size_t shown = std::min(whole.size(), capacity - 1);
    std::memcpy(text, whole.data(), shown);
    text[shown] = '\0';
  }
  if (length != nullptr) *length = whole.size();
}

bool flag(std::string_view name, std::int32_t value) {
  if (value == 0 || value == 1) return value == 1;
  refuse(std::string(name) + " is " + std::to_string(value) + "; accepted are 0 and 1");
}

}  // namespace attn::c

const char* attn_last_error(void) { return attn::c::last_error.c_str(); }

const char* attn_status_name(attn_status status) {
  switch (status) {
    case ATTN_OK:
      return "ok";
    case ATTN_INVALID_ARGUMENT:
      return "invalid_argument";
    case ATTN_UNSUPPORTED:
      return "unsupported";
    case ATTN_UNAVAILABLE:
      return "unavailable";
    case ATTN_OUT_OF_MEMORY:
      return "out_of_memory";
    case ATTN_DEVICE:
      return "device";
    case ATTN_IO:
      return "io";
    case ATTN_INTERNAL:
      return "internal";
    default:
      return "unknown";
  }
}

const char* attn_version(void) { return ATTN_VERSION_STRING; }
