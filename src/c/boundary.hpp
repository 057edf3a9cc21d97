// What every function of attn/attn.h does at its ends: errors become a status and a text of the
// thread, structures are taken at the size that the caller's compiler knew, texts are given.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>

#include "attn/attn.h"
#include "attn/error.hpp"

namespace attn::c {

// Keeps the message as this thread's attn_last_error().
attn_status fail(attn_status status, const char* message) noexcept;
attn_status status_of(ErrorCode code) noexcept;

// The status of a call: ATTN_OK, or that of what `call` throws. Nothing passes through.
template <class Call>
attn_status guarded(const Call& call) noexcept {
  try {
    call();
    return ATTN_OK;
  } catch (const Error& error) {
    return fail(status_of(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(ATTN_OUT_OF_MEMORY, "memory for the call could not be allocated");
  } catch (const std::exception& error) {
    return fail(ATTN_INTERNAL, error.what());
  } catch (...) {
    return fail(ATTN_INTERNAL, "an exception of an unknown type was thrown");
  }
}

[[noreturn]] void refuse(const std::string& message);

template <class T>
const T& needed(std::string_view name, const T* pointer) {
  if (pointer == nullptr) {
    refuse(std::string(name) + " is a null pointer; accepted are pointers to what attn.h says");
  }
  return *pointer;
}
// Where a result goes.
template <class T>
T& result(std::string_view name, T* pointer) {
  static_cast<void>(needed(name, pointer));
  return *pointer;
}

// The bytes that a structure had in the first version that has it: what the oldest program gives.
// A member that is added later does not change its constant.
template <class T>
inline constexpr std::size_t kFirstSize = 0;
template <>
inline constexpr std::size_t kFirstSize<attn_problem> = 168;
template <>
inline constexpr std::size_t kFirstSize<attn_executor_functions> = 32;
template <>
inline constexpr std::size_t kFirstSize<attn_context> = 56;
template <>
inline constexpr std::size_t kFirstSize<attn_machine> = 120;
template <>
inline constexpr std::size_t kFirstSize<attn_inputs> = 136;
template <>
inline constexpr std::size_t kFirstSize<attn_outputs> = 24;
template <>
inline constexpr std::size_t kFirstSize<attn_output_gradients> = 24;
template <>
inline constexpr std::size_t kFirstSize<attn_gradients> = 56;
template <>
inline constexpr std::size_t kFirstSize<attn_options> = 56;
template <>
inline constexpr std::size_t kFirstSize<attn_plan_info> = 152;
template <>
inline constexpr std::size_t kFirstSize<attn_append_inputs> = 128;
template <>
inline constexpr std::size_t kFirstSize<attn_append_outputs> = 48;
template <>
inline constexpr std::size_t kFirstSize<attn_append_options> = 64;
template <>
inline constexpr std::size_t kFirstSize<attn_matmul_inputs> = 56;
template <>
inline constexpr std::size_t kFirstSize<attn_matmul_options> = 64;

template <class T>
constexpr std::size_t first_size() {
  static_assert(kFirstSize<T> > 0 && std::is_trivially_copyable_v<T>);
  if constexpr (sizeof(void*) != 8) return sizeof(T);  // the constants are those of 64-bit systems
  static_assert(sizeof(void*) != 8 || kFirstSize<T> <= sizeof(T));
  return kFirstSize<T>;
}

// What no structure reaches: a larger number is memory that nobody set.
inline constexpr std::size_t kMostSize = 4096;

void check_size(std::string_view name, std::uint64_t given, std::size_t first);
void check_unknown(std::string_view name, const void* structure, std::uint64_t given,
                   std::size_t known);

// The structure with zeros for members that the caller's version lacks. A null pointer is one of
// zeros. Throws Error(invalid_argument) for a size below the first version's, and where a newer
// caller says something that this library does not know.
template <class T>
T taken(std::string_view name, const T* from) {
  T whole{};
  if (from == nullptr) return whole;
  check_size(name, from->struct_size, first_size<T>());
  check_unknown(name, from, from->struct_size, sizeof(T));
  std::memcpy(&whole, from, std::min<std::size_t>(from->struct_size, sizeof(T)));
  return whole;
}

// Writes `whole` to a caller's structure as far as that goes. Its size stays as it is.
template <class T>
void give(std::string_view name, T whole, T* to) {
  whole.struct_size = needed(name, to).struct_size;
  check_size(name, whole.struct_size, first_size<T>());
  std::memcpy(to, &whole, std::min<std::size_t>(whole.struct_size, sizeof(T)));
}

// As attn_expr_text in attn/attn.h.
void give_text(std::string_view whole, char* text, std::size_t capacity, std::size_t* length);

// What stands for a boolean.
bool flag(std::string_view name, std::int32_t value);

}  // namespace attn::c
