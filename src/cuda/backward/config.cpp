#include "cuda/backward/config.hpp"

#include <fmt/format.h>

#include "attn/error.hpp"

namespace attn::cuda {
namespace {

using device::Gradient;

constexpr int kColumns = 64, kPiece = 64, kPad = 4;  // BackwardSimtLayout

// A thread holds block_m / 8 rows of 4 columns of each 64 of the gradient: at most 128 registers.
constexpr int kRows = 64, kRowsOfWide = 32, kWide = 128;

}  // namespace

std::int64_t BackwardConfig::shared_bytes() const noexcept {
  const std::int64_t rows = block_m + kPad;
  return 4 * (kPiece * rows + kPiece * (kColumns + kPad) + kColumns * rows);
}

void check_backward(const Problem& p, std::string_view kernel) {
  if (!kernel.empty() && kernel != kBackwardKernel) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("kernel is '{}'; accepted by backward is {}", kernel, kBackwardKernel));
  }
  if (p.dtype == DType::f64) {
    throw Error(ErrorCode::unsupported,
                fmt::format("no kernel of the cuda backend takes {}: dtype is f64; accepted are "
                            "f32, bf16 and f16",
                            to_string(p)));
  }
  if (p.layout_k == Layout::paged) {
    throw Error(ErrorCode::unsupported,
                fmt::format("backward takes no paged K and V ({}); accepted are dense and packed",
                            to_string(p)));
  }
}

BackwardConfig choose_backward(const Problem& p, const BackwardTensors& tensors,
                               Gradient gradient) {
  BackwardConfig config;
  config.dtype = p.dtype;
  config.head_dim = static_cast<int>(p.head_dim);
  config.head_dim_v = static_cast<int>(p.head_dim_v);
  config.packed_q = p.layout_q == Layout::packed;
  config.packed_k = p.layout_k == Layout::packed;
  config.used_q = tensors.seqused_q;
  config.used_k = tensors.seqused_k;
  config.dropout = p.dropout.probability > 0;
  config.gradient = gradient;
  const int width = gradient == Gradient::dv ? config.head_dim_v : config.head_dim;
  config.block_m = width > kWide && gradient != Gradient::buffers ? kRowsOfWide : kRows;
  config.block_n = kColumns;
  return config;
}

std::int64_t num_tiles(const Problem& p, const BackwardConfig& config) {
  const bool of_keys = (config.gradient == Gradient::dk || config.gradient == Gradient::dv);
  const std::int64_t rows = of_keys ? p.seqlen_k : p.seqlen_q;
  return (rows + config.block_m - 1) / config.block_m * p.batch * (of_keys ? p.heads_k : p.heads_q);
}

}  // namespace attn::cuda
