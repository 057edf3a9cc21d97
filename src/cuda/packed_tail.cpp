#include "cuda/packed_tail.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "cuda/device/params.cuh"
#include "cuda/driver/device.hpp"
#include "cuda/jit/kernels_by_key.hpp"
#include "cuda/problem_parameters.hpp"

namespace attn::cuda {
namespace {

// The source is the same for every problem.
struct PackedTailConfig {
  bool wide = false;  // cu_seqlens of int64
  bool operator==(const PackedTailConfig&) const = default;
};

constexpr unsigned kMinusInfinity = 0xff800000;  // as float

// The tensors of a launch, of which all have cu_seqlens of one dtype: one of another comes after a
// launch of those before.
class Tails {
 public:
  explicit Tails(const Context& context) : context_(context) {}
  void add(const Tensor& t, const device::Strides& strides, std::int64_t heads,
           std::int64_t columns, const Tensor& cu_seqlens, unsigned value) {
    const std::int64_t rows = columns == 0 || heads == 0 ? 0 : t.size() / (heads * columns);
    if (!t.given() || rows == 0) return;
    const bool wide = cu_seqlens.dtype == DType::i64;
    if (wide != wide_) launch();
    wide_ = wide;
    device::PackedTail& tail = parameters_.tails[parameters_.count++];
    tail.data = t.data;
    tail.row_stride = strides.row;
    tail.head_stride = strides.head;
    tail.rows = rows;
    tail.end = static_cast<const std::byte*>(cu_seqlens.data) +
               (cu_seqlens.size() - 1) * static_cast<std::int64_t>(size_of(cu_seqlens.dtype));
    tail.heads = static_cast<int>(heads);
    tail.columns = static_cast<int>(columns);
    tail.element_bytes = static_cast<int>(size_of(t.dtype));
    tail.value = value;
    device_ = t.device;
  }
  // Of [total, heads, columns].
  void add_rows(const Tensor& t, const Tensor& cu_seqlens) {
    if (!t.given()) return;
    add(t, strides_of(t, Layout::packed), t.shape[1], t.shape[2], cu_seqlens, 0);
  }
  // Of [heads, total].
  void add_lse(const Tensor& t, const Tensor& cu_seqlens) {
    if (!t.given()) return;
    add(t, lse_strides_of(t, Layout::packed), t.shape[0], 1, cu_seqlens, kMinusInfinity);
  }
  void launch() {
    if (parameters_.count == 0) return;
    const ContextGuard guard(device_.index);
    // Blocks go on to further rows; a tail is seldom long.
    constexpr std::int64_t kMostBlocks = 256;
    std::int64_t rows = 0;
    for (int i = 0; i < parameters_.count; ++i) {
      rows = std::max<std::int64_t>(rows, parameters_.tails[i].rows);
    }
    LaunchConfig launch;
    launch.block = 256;
    launch.grid[0] = std::min(rows, kMostBlocks) * parameters_.count;
    std::array<void*, 1> arguments{&parameters_};
    kernels_by_key<PackedTailConfig>()
        .get(device_.index, {.wide = wide_}, context_, [&] { return packed_tail_source(wide_); })
        .launch(launch, context_.stream, arguments.data());
    parameters_ = {};
  }

 private:
  const Context& context_;
  device::PackedTailParams parameters_{};
  Device device_{};
  bool wide_ = false;
};

}  // namespace

Source packed_tail_source(bool wide) {
  Source source;
  source.name = "packed_tail";
  source.entry = "attn_packed_tail";
  source.text = fmt::format(
      "#include \"kernels/packed_tail.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(256)\n"
      "attn_packed_tail(const __grid_constant__ attn::device::PackedTailParams p) {{\n"
      "  attn::device::write_packed_tail<{}>(p);\n"
      "}}\n",
      wide);
  return source;
}

bool has_packed_tail(const Problem& problem, Phase phase) {
  return problem.layout_q == Layout::packed ||
         (phase == Phase::backward && problem.layout_k == Layout::packed);
}

void write_packed_tail(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
                       const Context& context) {
  if (problem.layout_q != Layout::packed) return;
  Tails tails(context);
  tails.add_rows(outputs.o, inputs.cu_seqlens_q);
  tails.add_lse(outputs.lse, inputs.cu_seqlens_q);
  tails.launch();
}

void write_packed_tail(const Problem& problem, const Inputs& inputs, const Gradients& gradients,
                       const Context& context) {
  Tails tails(context);
  if (problem.layout_q == Layout::packed) tails.add_rows(gradients.dq, inputs.cu_seqlens_q);
  if (problem.layout_k == Layout::packed) {
    tails.add_rows(gradients.dk, inputs.cu_seqlens_k);
    tails.add_rows(gradients.dv, inputs.cu_seqlens_k);
  }
  tails.launch();
}

}  // namespace attn::cuda
