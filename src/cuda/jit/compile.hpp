// From source text to a cubin, by NVRTC. Needs no GPU.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attn/context.hpp"
#include "cuda/codegen/source.hpp"

namespace attn::cuda {

// A target: sm_80, sm_90a, ... The accelerated form ("a") has the instructions of this architecture
// alone (wgmma, tcgen05) and runs on no other.
struct Arch {
  int number = 0;  // 90
  bool accelerated = false;
  bool operator==(const Arch&) const = default;
};
std::string to_string(Arch arch);        // "sm_90a"
Arch parse_arch(std::string_view text);  // inverse; throws Error(invalid_argument)
// The form that kernels for a device of this compute capability are compiled for: accelerated from
// 9.0 on.
Arch arch_of_capability(int capability);

// What the assembler says of the kernel.
struct Report {
  int registers = 0;          // of one thread
  int spill_store_bytes = 0;  // of one thread, summed over the instructions
  int spill_load_bytes = 0;
  int local_bytes = 0;                  // of one thread: stack frame
  int shared_bytes = 0;                 // static, of one block
  std::vector<std::string> warnings{};  // a line each: of the compiler, and of the assembler what
                                        // costs time (spills, serialised wgmma)
  double seconds = 0;                   // the call took: to compile, or to read from the disk
  bool from_cache = false;              // read from the disk
};
std::string to_string(const Report& report);  // a line, then the warnings

// Reads a log of NVRTC with ptxas -v in it.
Report parse_log(std::string_view log, std::string_view entry);

struct Compiled {
  std::vector<char> cubin{};
  Report report{};
  std::string ptx{};  // only when it is dumped
};

// Looks into the disk cache (default_cache_folder() in disk_cache.hpp) and fills it; a cache that
// cannot be used is told once to context.log, and kernels are then compiled by each process.
// Throws Error(unavailable) without NVRTC, Error(unsupported) when this NVRTC does not know the
// architecture, Error(internal) with the first errors of the log when the text is not accepted.
// Thread-safe.
Compiled compile(const Source& source, Arch arch, const Context& context);

// Does what compile() does with the cache in `folder`; throws Error(io) when that cannot be used or
// written.
Compiled compile_into(const Source& source, Arch arch, const Context& context,
                      const std::string& folder);

}  // namespace attn::cuda
