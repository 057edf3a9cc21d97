// Where in the library's own GPU kernels each step of the page's algorithms is.
#pragma once

#include <string_view>
#include <vector>

#include "explain/problem_json.hpp"

namespace attn::explain {

struct SourceLine {
  std::string_view algorithm, step;  // as in web/*.js: the name, the key of a line of the listing
  std::string_view file;             // under src/cuda/device
  std::string_view text;             // the first line that has it is meant
};
const std::vector<SourceLine>& source_lines();

// The number of that line, from 1 on; 0 where the file has none.
int number_of(const SourceLine& line);

// {algorithm: {step: [file, number]}}, with files from the repository's folder.
Json source_lines_json();

}  // namespace attn::explain
