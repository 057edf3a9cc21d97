// What the run-time compiler gets.
#pragma once

#include <string>
#include <vector>

#include "core/text/embedded_files.hpp"

namespace attn::cuda {

// A translation unit with one kernel. #include "kernels/x.cuh" means src/cuda/device/kernels/x.cuh,
// whose text is part of the library.
struct Source {
  std::string name;                  // "forward_sm90": in reports, names of dumps and cache files
  std::string text;                  // the whole text
  std::string entry;                 // extern "C" __global__ function
  std::vector<std::string> options;  // further options of NVRTC
  // Bytes of spills, stores and loads each, that the kernel's tile shape was accepted with
  // (src/cuda/kernels); more is an error of `attn compile --strict`.
  int allowed_spill_bytes = 0;
};

// The headers of src/cuda/device.
const core::EmbeddedFiles& embedded_headers();

}  // namespace attn::cuda
