// What ranks tell each other before they work: what each is about to do, and whether it can.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>

#include "attn/dist.hpp"
#include "attn/error.hpp"

namespace attn::dist {

std::uint64_t hash_of(std::string_view text, std::uint64_t from = 0xcbf29ce484222325ULL);

// Sent as it lies in memory: ranks run on machines that lay out numbers alike.
class Greeting {
 public:
  // call: "make_plan", "forward", ...
  explicit Greeting(std::string_view call) { add("call", call); }

  // What must be the same on all ranks: compared whole, and told as far as it fits.
  void add(std::string_view name, std::string_view value);
  // This rank cannot go on.
  void refuse(ErrorCode code, std::string_view cause);
  bool is_refused() const { return refused_ != 0; }

  // Throws Error where a rank refuses, with its code, or where two ranks differ, with
  // invalid_argument: the same on every rank.
  friend void agree(const Group& group, const Greeting& own, std::chrono::milliseconds timeout);

 private:
  static constexpr std::size_t kFields = 12;
  struct Field {
    char name[16] = {};
    char text[104] = {};
    std::uint64_t hash = 0;
  };
  std::int32_t version_ = 1;
  std::int32_t refused_ = 0;
  std::int32_t code_ = 0;
  std::int32_t fields_ = 0;
  std::array<Field, kFields> field_{};
  char cause_[600] = {};
};
static_assert(std::is_trivially_copyable_v<Greeting>);

void agree(const Group& group, const Greeting& own, std::chrono::milliseconds timeout);

}  // namespace attn::dist
