#include "cuda/codegen/places_text.hpp"

#include <fmt/format.h>

#include <cstddef>

namespace attn::cuda {
namespace {

// The place of `x` in runs [first, last), whose numbers are divided by `unit`.
std::string place_text(const core::Runs& runs, std::size_t first, std::size_t last, int unit) {
  if (first + 1 == last) return fmt::format("(x) + {}", runs[first].shift / unit);
  const std::size_t middle = first + (last - first) / 2;
  return fmt::format("((x) < {} ? {} : {})", runs[middle].begin / unit,
                     place_text(runs, first, middle, unit), place_text(runs, middle, last, unit));
}

}  // namespace

std::string places_text(const core::Places& places) {
  const core::Runs &queries = places.query.front(), &keys = places.key.front();
  return fmt::format("#define ATTN_PLACE_OF_QUERY(x) ({})\n#define ATTN_PLACE_OF_KEYS(x) ({})\n",
                     place_text(queries, 0, queries.size(), 1),
                     place_text(keys, 0, keys.size(), 64));
}

}  // namespace attn::cuda
