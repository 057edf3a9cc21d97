// What the run-time compiler gets.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attn::cuda {

// A translation unit with one kernel. #include "kernels/x.cuh" means src/cuda/device/kernels/x.cuh,
// whose text is part of the library.
struct Source {
  std::string name;                  // "forward_sm90": in reports, names of dumps and cache files
  std::string text;                  // the whole text
  std::string entry;                 // extern "C" __global__ function
  std::vector<std::string> options;  // further options of NVRTC
  // Bytes of spills, stores and loads each, that the kernel's tile shape was accepted with
  // (src/cuda/heuristics); more is an error of `attn compile --strict`.
  int allowed_spill_bytes = 0;
};

// A header of src/cuda/device.
struct EmbeddedHeader {
  const char* name;  // relative to src/cuda/device
  const char* text;
};
// By name. Made by cmake/EmbedHeaders.cmake at build time.
struct EmbeddedHeaders {
  const EmbeddedHeader* begin;
  int count;
  std::string_view hash;  // SHA-256 of all names and texts, in hexadecimal digits
};
const EmbeddedHeaders& embedded_headers();

}  // namespace attn::cuda
