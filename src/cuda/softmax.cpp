#include "cuda/softmax.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "cuda/codegen/config_text.hpp"
#include "cuda/device/kernels/softmax_params.cuh"
#include "cuda/device/params.cuh"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"
#include "cuda/jit/kernel.hpp"

namespace attn::cuda {
namespace {

// Whether rows begin at multiples of 16 bytes.
bool takes_packets(const Tensor& t) { return alignment_of(t) % 16 == 0; }

}  // namespace

Source softmax_source(const SoftmaxCall& call) {
  const bool top = call.values.given();
  ConfigText text(DType::f32);
  text.flag("kThreePass", call.algorithm == SoftmaxAlgorithm::three_pass);
  text.number("kTop", top ? static_cast<int>(call.values.shape[1]) : 0);
  text.number("kWide", takes_packets(call.x) && (top || takes_packets(call.y)) ? 4 : 1);
  Source source;
  source.name = "softmax";
  source.entry = "attn_softmax";
  source.text = fmt::format(
      "#include \"ptx/math.cuh\"\n#include \"kernels/softmax.cuh\"\n"
      "namespace attn::device {{\n{}}}\n"
      "extern \"C\" __global__ void __launch_bounds__(attn::device::kSoftmaxThreads)\n"
      "attn_softmax(const __grid_constant__ attn::device::SoftmaxParams p) {{\n"
      "  attn::device::softmax<attn::device::Config>(p);\n"
      "}}\n",
      text.text());
  return source;
}

void softmax(const SoftmaxCall& call, const Context& context) {
  const std::int64_t rows = call.x.shape[0];
  if (rows == 0) return;
  const int ordinal = call.x.device.index;
  const ContextGuard guard(ordinal);
  device::SoftmaxParams p{};
  p.x = static_cast<const float*>(call.x.data);
  p.y = static_cast<float*>(call.y.data);
  p.values = static_cast<float*>(call.values.data);
  p.columns = static_cast<int*>(call.columns.data);
  p.lse = static_cast<float*>(call.lse.data);
  p.rows = rows;
  p.columns_x = static_cast<int>(call.x.shape[1]);
  p.x_row = call.x.strides[0];
  p.y_row = call.y.strides[0];
  p.lse_row = call.lse.strides[0];
  p.values_row = call.values.strides[0];
  p.values_column = call.values.strides[1];
  p.columns_row = call.columns.strides[0];
  p.columns_column = call.columns.strides[1];
  // More blocks than any GPU runs at once; past them blocks go on.
  constexpr std::int64_t kMostBlocksAtOnce = 1 << 20;
  constexpr unsigned kSharedBytes = device::kSoftmaxThreads / 32 * sizeof(device::RowSums);
  LaunchConfig launch;
  launch.block = device::kSoftmaxThreads;
  launch.grid[0] = std::min(rows, kMostBlocksAtOnce);
  launch.shared_bytes = kSharedBytes;
  std::array<void*, 1> arguments{&p};
  get_kernel(ordinal, softmax_source(call), context)
      ->launch(launch, context.stream, arguments.data());
}

}  // namespace attn::cuda
