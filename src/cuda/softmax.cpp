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
#include "cuda/jit/kernels_by_key.hpp"

namespace attn::cuda {
namespace {

// Whether rows begin at multiples of 16 bytes.
bool takes_packets(const Tensor& t) { return alignment_of(t) % 16 == 0; }

// All that the source depends on.
struct SoftmaxConfig {
  explicit SoftmaxConfig(const SoftmaxCall& call)
      : three_pass(call.algorithm == SoftmaxAlgorithm::three_pass),
        top(call.values.given() ? static_cast<int>(call.values.shape[1]) : 0),
        wide(takes_packets(call.x) && (top > 0 || takes_packets(call.y)) ? 4 : 1) {}
  bool operator==(const SoftmaxConfig&) const = default;

  bool three_pass;
  int top;   // 0: y is written
  int wide;  // elements of a load
};

}  // namespace

Source softmax_source(const SoftmaxCall& call) {
  const SoftmaxConfig config(call);
  ConfigText text(DType::f32);
  text.flag("kThreePass", config.three_pass);
  text.number("kTop", config.top);
  text.number("kWide", config.wide);
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
  kernels_by_key<SoftmaxConfig>()
      .get(ordinal, SoftmaxConfig(call), context, [&] { return softmax_source(call); })
      .launch(launch, context.stream, arguments.data());
}

}  // namespace attn::cuda
