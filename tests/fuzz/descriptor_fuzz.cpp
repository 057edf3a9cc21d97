// The text form of problems and of test cases (docs/descriptors.md).
#include "attn/problem.hpp"
#include "fuzz.hpp"
#include "verify/case.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using attn::ErrorCode;
  const std::string_view text = attn::fuzz::text(data, size);
  attn::fuzz::accept_or_refuse({ErrorCode::invalid_argument}, [&] {
    const attn::Problem problem = attn::parse_problem(text);
    const std::string printed = attn::to_string(problem);
    attn::fuzz::require(attn::to_string(attn::parse_problem(printed)) == printed,
                        "a printed problem reads back as another one");
  });
  attn::fuzz::accept_or_refuse({ErrorCode::invalid_argument},
                               [&] { attn::verify::parse_case(text); });
  return 0;
}
