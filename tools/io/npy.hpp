// NumPy's .npy format, versions 1.0, 2.0 and 3.0.
#pragma once

#include <filesystem>

#include "io/array.hpp"

namespace attn::io {

// Little-endian f2, f4, f8, i4, i8 or u1 in C order, rank 1 to kMaxRank; the file ends with the
// data. Memory in proportion to the file. Throws Error(io) naming what was found and what is
// accepted.
Array read_npy(const std::filesystem::path& path);

// Throws Error(invalid_argument) for a dtype that the format lacks: bf16. `path` is for the
// message.
void check_npy(const std::filesystem::path& path, DType dtype);
// A host tensor of any strides and a dtype that check_npy accepts. Throws Error(invalid_argument |
// io).
void write_npy(const std::filesystem::path& path, const Tensor& tensor);

}  // namespace attn::io
