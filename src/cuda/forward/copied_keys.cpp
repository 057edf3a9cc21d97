#include "cuda/forward/copied_keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/cache_type.hpp"
#include "cuda/codegen/config_text.hpp"
#include "cuda/forward/parameters.hpp"
#include "cuda/forward/source.hpp"
#include "cuda/plan/choose_forward.hpp"
#include "cuda/problem_parameters.hpp"

namespace attn::cuda {
namespace {

constexpr std::int64_t kAlignment = 128;  // of a copy

core::Size bytes_of(const Problem& p, std::int64_t dim) {
  const core::Size elements = core::Size(p.batch) * p.seqlen_k * p.heads_k * dim;
  return core::round_up(elements * static_cast<std::int64_t>(size_of(p.dtype)), kAlignment);
}

// Rows of K that sequences have, whatever the tensor has besides.
std::int64_t rows_of(const Problem& p, const Tensor& k) {
  const std::int64_t most = p.batch * p.seqlen_k;
  return p.layout_k == Layout::packed ? std::min(most, k.shape[0]) : most;
}

// Whether a kernel takes the problem; named: that one alone.
bool takes(const ForwardKernel& kernel, const Problem& p, Arch arch) {
  const ForwardTensors tensors;
  return (p.key_list == 0 || kernel.takes_key_lists) &&
         kernel.choose({p, arch, tensors, forward_features(p, tensors), false, {}})
             .obstacle.empty();
}

}  // namespace

bool copies_keys(const Problem& p, Arch arch, std::string_view kernel) {
  if (!core::has_own_types(p) || p.seqlen_prefix > 0 || p.key_list > 0) return false;
  if (p.dtype != DType::bf16 && p.dtype != DType::f16) return false;
  if (!kernel.empty()) {
    const ForwardKernel* const named = find_forward_kernel(kernel.substr(0, kernel.find('/')));
    return named != nullptr && !named->takes_cache_types;
  }
  // The first kernel that takes the problem itself, or over copies.
  const Problem copies = over_copies(p);
  for (const ForwardKernel& k : forward_kernels()) {
    if (k.takes_cache_types && takes(k, p, arch)) return false;
    if (!k.takes_cache_types && !k.runs_by_name_only() && takes(k, copies, arch)) return true;
  }
  return false;
}

Problem over_copies(const Problem& p) {
  Problem copies = p;
  copies.type_k = copies.type_v = CacheType::as_q;
  if (p.layout_k == Layout::paged) {
    copies.layout_k = Layout::dense;
    copies.page_size = 0;
  }
  return copies;
}

core::Size copied_bytes(const Problem& p) {
  return bytes_of(p, p.head_dim) + bytes_of(p, p.head_dim_v);
}

Source copy_keys_source(const Problem& p, const ForwardTensors& tensors) {
  const ForwardFeatures f = forward_features(p, tensors);
  ConfigText config(f.dtype);
  config.number("kHeadDim", f.head_dim);
  config.number("kHeadDimV", f.head_dim_v);
  config.number("kPageSize", f.page_size);
  config.flag("kPackedK", f.packed_k);
  config.flag("kUsedK", f.used_k);
  config.flag("kAligned", tensors.cache_aligned);
  print_cache_types(f, config);
  Source source;
  source.name = "copy_keys";
  source.entry = "attn_copy_keys";
  source.text =
      "#include \"tile/cache_type.cuh\"\nnamespace attn::device {\n" + config.text() + "}\n";
  source.text +=
      "#include \"kernels/copy_keys.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(256)\n"
      "attn_copy_keys(const __grid_constant__ attn::device::CopyKeysParams p) {\n"
      "  attn::device::copy_keys<attn::device::Config>(p);\n"
      "}\n";
  return source;
}

Inputs copied_inputs(const Problem& p, const Inputs& inputs, std::byte* workspace) {
  Inputs copies = inputs;
  const auto copy = [&](std::byte* data, std::int64_t dim) {
    if (p.layout_k == Layout::packed) {
      return tensor(static_cast<void*>(data), p.dtype, {rows_of(p, inputs.k), p.heads_k, dim},
                    inputs.k.device);
    }
    return tensor(static_cast<void*>(data), p.dtype, {p.batch, p.seqlen_k, p.heads_k, dim},
                  inputs.k.device);
  };
  copies.k = copy(workspace, p.head_dim);
  copies.v = copy(workspace + bytes_of(p, p.head_dim).value(), p.head_dim_v);
  copies.page_table = copies.scale_k = copies.scale_v = {};
  return copies;
}

void launch_copy(const Kernel& kernel, const Problem& p, const Inputs& inputs, const Inputs& copies,
                 void* stream) {
  device::CopyKeysParams to{};
  fill_problem_parameters(to, p);
  to.k = inputs.k.data;
  to.v = inputs.v.data;
  to.k_strides = strides_of(inputs.k, p.layout_k);
  to.v_strides = strides_of(inputs.v, p.layout_k);
  to.seqused_k = static_cast<const int*>(inputs.seqused_k.data);
  fill_scales(to, p, inputs);
  if (p.layout_k == Layout::paged) {
    to.page_table = static_cast<const int*>(inputs.page_table.data);
    to.page_table_stride = inputs.page_table.strides[0];
    to.num_pages = static_cast<int>(inputs.k.shape[0]);
  }
  to.to_k = copies.k.data;
  to.to_v = copies.v.data;
  to.rows = rows_of(p, inputs.k);
  constexpr std::int64_t kElements = 8, kThreads = 256;
  const core::Size items =
      core::Size(to.rows) * p.heads_k * ((p.head_dim + p.head_dim_v) / kElements);
  if (items.value() == 0) return;
  LaunchConfig launch;
  launch.grid[0] = core::divide_up(items, kThreads).value();
  launch.block = static_cast<unsigned>(kThreads);
  std::array<void*, 1> arguments{&to};
  kernel.launch(launch, stream, arguments.data());
}

}  // namespace attn::cuda
