// ATTN_DUMP=source,ptx,cubin,report: files of what is compiled, for people.
#pragma once

#include <string>

#include "cuda/jit/compile.hpp"

namespace attn::cuda {

struct Dump {
  bool source = false, ptx = false, cubin = false, report = false;
  std::string unknown{};  // a word that is none of these
  std::string folder{};
  bool any() const { return source || ptx || cubin || report; }
};

// What is to be written and where, from ATTN_DUMP, and ATTN_DUMP_DIR (default: attn_dump in the
// current folder).
Dump dump_from_environment();

// Writes <stem>.cu, .ptx, .cubin and .txt, whatever is asked for, over earlier ones. Throws
// Error(io).
void write_dump(const Dump& dump, const std::string& stem, const Source& source,
                const Compiled& compiled);

}  // namespace attn::cuda
