#include "dist/greeting.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

namespace attn::dist {
namespace {

template <std::size_t kSize>
void copy_text(std::string_view from, char (&to)[kSize]) {
  const std::size_t length = std::min(from.size(), kSize - 1);
  std::memcpy(to, from.data(), length);
  to[length] = '\0';
}

}  // namespace

// FNV-1a (Fowler, Noll and Vo), of 64 bits.
std::uint64_t hash_of(std::string_view text, std::uint64_t from) {
  for (const char c : text) from = (from ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return from;
}

void Greeting::add(std::string_view name, std::string_view value) {
  if (static_cast<std::size_t>(fields_) == kFields) {
    throw Error(ErrorCode::internal, fmt::format("a greeting has no room for {}", name));
  }
  Field& field = field_[static_cast<std::size_t>(fields_++)];
  copy_text(name, field.name);
  copy_text(value, field.text);
  field.hash = hash_of(value);
}

void Greeting::refuse(ErrorCode code, std::string_view cause) {
  refused_ = 1;
  code_ = static_cast<std::int32_t>(code);
  copy_text(cause, cause_);
}

void agree(const Group& group, const Greeting& own, std::chrono::milliseconds timeout) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto got = std::make_shared<std::vector<Greeting>>(ranks, own);
  const std::vector<Greeting>& all = *got;
  const auto sent = std::make_shared<const Greeting>(own);
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int r = 0; r < group.size(); ++r) {
    if (r == group.rank()) continue;
    sends.push_back({r, sent.get(), sizeof(Greeting), sent});
    receives.push_back({r, &(*got)[static_cast<std::size_t>(r)], sizeof(Greeting), got});
  }
  group.engine().exchange(sends, receives, timeout);
  for (std::size_t r = 0; r < ranks; ++r) {
    if (all[r].version_ != all[0].version_) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("rank {} speaks version {} of attn::dist, rank 0 version {}; accepted "
                      "is one version on all ranks",
                      r, all[r].version_, all[0].version_));
    }
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    if (all[r].refused_ == 0) continue;
    throw Error(static_cast<ErrorCode>(all[r].code_), fmt::format("rank {}: {}", r, all[r].cause_));
  }
  for (std::size_t r = 1; r < ranks; ++r) {
    const std::int32_t fields = std::min(all[r].fields_, all[0].fields_);
    for (std::size_t f = 0; f < static_cast<std::size_t>(fields); ++f) {
      const Greeting::Field& here = all[r].field_[f];
      const Greeting::Field& there = all[0].field_[f];
      if (here.hash == there.hash) continue;
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} is '{}' on rank {} and '{}' on rank 0; accepted is the same on "
                              "all ranks",
                              here.name, here.text, r, there.text));
    }
  }
}

}  // namespace attn::dist
