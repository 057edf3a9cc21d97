#include "cuda/forward/transposed_values.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "core/ceil_div.hpp"
#include "cuda/codegen/config_text.hpp"
#include "cuda/device/params.cuh"
#include "cuda/driver/device.hpp"
#include "cuda/problem_parameters.hpp"

namespace attn::cuda {
namespace {

constexpr std::int64_t kKeys = 128;      // of a thread block
constexpr std::int64_t kRowsOfOnes = 8;  // device/schedule/transposed_values.cuh

// What lengths are rounded up to: whole thread blocks, and where sequences are packed or have
// lengths of their own, whole tiles of keys.
std::int64_t unit_of(const ForwardConfig& config) {
  const ForwardFeatures& f = config.features;
  if (!f.packed_k && !f.used_k) return kKeys;
  return std::lcm(std::int64_t{config.tiling.keys}, kKeys);
}

}  // namespace

core::Size transposed_bytes(const Problem& p, const ForwardConfig& config) {
  const std::int64_t unit = unit_of(config);
  return (core::divide_up(p.seqlen_k, unit) * unit + unit) * p.batch * p.heads_k *
         (p.head_dim_v + kRowsOfOnes);
}

Tensor transposed_values(const Problem& p, const ForwardConfig& config, const Tensor& v,
                         std::byte* workspace) {
  const std::int64_t unit = unit_of(config);
  std::int64_t batch = p.batch, columns = core::ceil_div(p.seqlen_k, unit) * unit;
  if (p.layout_k == Layout::packed) {
    batch = 1;
    columns = (std::min(p.batch * p.seqlen_k, v.shape[0]) / unit + p.batch) * unit;
  }
  return tensor(static_cast<void*>(workspace), DType::u8,
                {batch, p.heads_k, p.head_dim_v + kRowsOfOnes, columns}, v.device);
}

Source transpose_source(const ForwardConfig& c) {
  const ForwardFeatures& f = c.features;
  ConfigText config(f.dtype);
  config.type("OperandV", float8_element(f.type_v));
  config.number("kHeadDimV", f.head_dim_v);
  config.number("kTransposedUnit", static_cast<int>(unit_of(c)));
  config.number("kBlockN", c.tiling.keys);
  config.number("kPageSize", f.page_size);
  config.flag("kPackedK", f.packed_k);
  config.flag("kUsedK", f.used_k);
  config.number("kWide", static_cast<int>(f.wide));
  config.flag("kPackedQ", false);
  config.flag("kUsedQ", false);
  Source source;
  source.name = "transpose_values";
  source.entry = "attn_transpose_values";
  source.text = "#include \"ptx/math.cuh\"\nnamespace attn::device {\n" + config.text() +
                "}\n"
                "#include \"kernels/transpose_values.cuh\"\n"
                "extern \"C\" __global__ void "
                "__launch_bounds__(attn::device::kTransposeThreads)\n"
                "attn_transpose_values(const __grid_constant__ "
                "attn::device::TransposeValuesParams p) {\n"
                "  attn::device::transpose_values<attn::device::Config>(p);\n"
                "}\n";
  return source;
}

void launch_transpose(const Kernel& kernel, const Problem& p, const ForwardConfig& config,
                      const Inputs& inputs, const Tensor& transposed, void* stream) {
  device::TransposeValuesParams to{};
  fill_problem_parameters(to, p);
  to.v = inputs.v.data;
  to.v_strides = strides_of(inputs.v, p.layout_k);
  to.cu_seqlens_k = inputs.cu_seqlens_k.data;
  to.seqused_k = inputs.seqused_k.data;
  if (p.layout_k == Layout::paged) {
    to.page_table = inputs.page_table.data;
    to.page_table_stride = inputs.page_table.strides[0];
    to.num_pages = static_cast<int>(inputs.v.shape[0]);
  }
  to.to = static_cast<unsigned char*>(transposed.data);
  to.columns = transposed.strides[2];
  const std::int64_t unit = unit_of(config);
  LaunchConfig launch;
  launch.grid[0] =
      (core::divide_up(p.seqlen_k, unit) * (unit / kKeys) * p.heads_k * p.batch).value();
  launch.block = device::kTransposeThreads;
  launch.shared_bytes = static_cast<unsigned>(kKeys * p.head_dim_v + kKeys);
  if (launch.grid[0] == 0) return;
  std::array<void*, 1> arguments{&to};
  kernel.launch(launch, stream, arguments.data());
}

}  // namespace attn::cuda
