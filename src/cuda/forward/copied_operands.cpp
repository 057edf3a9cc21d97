#include "cuda/forward/copied_operands.hpp"

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

core::Size bytes_of(const Problem& p, core::Size rows, std::int64_t dim) {
  return core::round_up(rows * dim * static_cast<std::int64_t>(size_of(p.dtype)), kAlignment);
}
core::Size bytes_of_q(const Problem& p) {
  return bytes_of(p, core::Size(p.batch) * p.seqlen_q * p.heads_q, p.head_dim);
}
core::Size bytes_of_keys(const Problem& p, std::int64_t dim) {
  return bytes_of(p, core::Size(p.batch) * p.seqlen_k * p.heads_k, dim);
}

// Rows that sequences have, whatever the tensor has besides.
std::int64_t rows_of(Layout layout, std::int64_t most, const Tensor& t) {
  return layout == Layout::packed ? std::min(most, t.shape[0]) : most;
}
std::int64_t rows_of_q(const Problem& p, const Tensor& q) {
  return rows_of(p.layout_q, p.batch * p.seqlen_q, q);
}
std::int64_t rows_of_keys(const Problem& p, const Tensor& k) {
  return rows_of(p.layout_k, p.batch * p.seqlen_k, k);
}

// Elements of a row that a thread converts (kernels/copy_operands.cuh).
std::int64_t columns_of(const Problem& p, std::int64_t dim) {
  return size_of(p.dtype) == 2 && dim % 8 == 0 ? 8 : 1;
}

// Whether a kernel takes the problem with the types that it has.
bool takes(const ForwardKernel& kernel, const Problem& p, Arch arch,
           const ForwardTensors& of_call = {}) {
  const ForwardTensors tensors{.cache_aligned = !kernel.takes_float8 || of_call.cache_aligned,
                               .row_scales = of_call.row_scales};
  return takes_types(kernel, p) && (of_call.mapped || !kernel.reads_maps) &&
         (p.key_list == 0 || kernel.takes_key_lists) &&
         kernel.choose({p, arch, tensors, forward_features(p, tensors), false, {}})
             .obstacle.empty();
}

// What is converted for a kernel that does not take all types as they are.
Copies needed(const ForwardKernel& kernel, const Problem& p) {
  Copies copies{.q = core::has_own_type_q(p)};
  const bool may_copy_keys =
      p.seqlen_prefix == 0 && p.key_list == 0 && (p.dtype == DType::bf16 || p.dtype == DType::f16);
  copies.keys = core::has_own_types(p) && !kernel.takes_cache_types && may_copy_keys;
  return copies;
}

}  // namespace

Copies choose_copies(const Problem& p, Arch arch, std::string_view kernel,
                     const ForwardTensors& tensors) {
  if (!core::has_own_type_q(p) && !core::has_own_types(p)) return {};
  const Copies of_q{.q = core::has_own_type_q(p)};
  if (p.seqlen_prefix > 0) return of_q;
  if (!kernel.empty()) {
    const ForwardKernel* const named = find_forward_kernel(kernel.substr(0, kernel.find('/')));
    if (named == nullptr || takes(*named, p, arch)) return {};
    return needed(*named, p);
  }
  // The first kernel that takes the problem itself, or over copies.
  for (const ForwardKernel& k : forward_kernels()) {
    if (k.runs_by_name_only()) continue;
    if (takes(k, p, arch, tensors)) return {};
    const Copies copies = needed(k, p);
    if (takes(k, over_copies(p, copies), arch)) return copies;
  }
  return of_q;
}

Problem over_copies(const Problem& p, Copies copies) {
  Problem to = p;
  if (copies.q) to.type_q = CacheType::as_q;
  if (!copies.keys) return to;
  to.type_k = to.type_v = CacheType::as_q;
  if (p.layout_k == Layout::paged) {
    to.layout_k = Layout::dense;
    to.page_size = 0;
  }
  return to;
}

core::Size copied_bytes(const Problem& p, Copies copies) {
  core::Size bytes = 0;
  if (copies.q) bytes = bytes_of_q(p);
  if (copies.keys) bytes = bytes + bytes_of_keys(p, p.head_dim) + bytes_of_keys(p, p.head_dim_v);
  return bytes;
}

Source copy_source(const Problem& p, const ForwardTensors& tensors, Copies copies) {
  const ForwardFeatures f = forward_features(p, tensors);
  ConfigText config(f.dtype);
  config.number("kHeadDim", f.head_dim);
  config.number("kHeadDimV", f.head_dim_v);
  config.number("kPageSize", f.page_size);
  config.flag("kPackedK", f.packed_k);
  config.flag("kUsedK", f.used_k);
  config.number("kWide", static_cast<int>(f.wide));
  config.flag("kAligned", tensors.cache_aligned);
  config.flag("kCopiesQ", copies.q);
  config.flag("kCopiesKeys", copies.keys);
  if (copies.q) {
    config.flag("kPackedQ", f.packed_q);
    config.flag("kUsedQ", f.used_q);
  }
  print_cache_types(f, config);
  Source source;
  source.name = "copy_operands";
  source.entry = "attn_copy_operands";
  source.text =
      "#include \"tile/cache_type.cuh\"\nnamespace attn::device {\n" + config.text() + "}\n";
  source.text +=
      "#include \"kernels/copy_operands.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(256)\n"
      "attn_copy_operands(const __grid_constant__ attn::device::CopyOperandsParams p) {\n"
      "  attn::device::copy_operands<attn::device::Config>(p);\n"
      "}\n";
  return source;
}

Inputs copied_inputs(const Problem& p, const Inputs& inputs, Copies copies, std::byte* workspace) {
  Inputs to = inputs;
  const auto copy = [&](const Tensor& like, Layout layout, std::int64_t rows, std::int64_t heads,
                        std::int64_t dim) {
    auto* const data = static_cast<void*>(workspace);
    if (layout == Layout::packed) return tensor(data, p.dtype, {rows, heads, dim}, like.device);
    return tensor(data, p.dtype, {p.batch, rows, heads, dim}, like.device);
  };
  if (copies.q) {
    const bool packed = p.layout_q == Layout::packed;
    to.q = copy(inputs.q, p.layout_q, packed ? rows_of_q(p, inputs.q) : p.seqlen_q, p.heads_q,
                p.head_dim);
    to.scale_q = {};
    workspace += bytes_of_q(p).value();
  }
  if (!copies.keys) return to;
  const std::int64_t rows = p.layout_k == Layout::packed ? rows_of_keys(p, inputs.k) : p.seqlen_k;
  to.k = copy(inputs.k, p.layout_k, rows, p.heads_k, p.head_dim);
  workspace += bytes_of_keys(p, p.head_dim).value();
  to.v = copy(inputs.k, p.layout_k, rows, p.heads_k, p.head_dim_v);
  to.page_table = to.scale_k = to.scale_v = {};
  return to;
}

void launch_copy(const Kernel& kernel, const Problem& p, const Inputs& inputs, const Inputs& copied,
                 Copies copies, void* stream) {
  device::CopyOperandsParams to{};
  fill_problem_parameters(to, p);
  fill_scales(to, p, inputs);
  core::Size items = 0;
  if (copies.q) {
    to.q = inputs.q.data;
    to.q_strides = strides_of(inputs.q, p.layout_q);
    to.seqused_q = inputs.seqused_q.data;
    to.to_q = copied.q.data;
    to.rows_q = rows_of_q(p, inputs.q);
    items = core::Size(to.rows_q) * p.heads_q * (p.head_dim / columns_of(p, p.head_dim));
  }
  if (copies.keys) {
    to.k = inputs.k.data;
    to.v = inputs.v.data;
    to.k_strides = strides_of(inputs.k, p.layout_k);
    to.v_strides = strides_of(inputs.v, p.layout_k);
    to.seqused_k = inputs.seqused_k.data;
    if (p.layout_k == Layout::paged) {
      to.page_table = inputs.page_table.data;
      to.page_table_stride = inputs.page_table.strides[0];
      to.num_pages = static_cast<int>(inputs.k.shape[0]);
    }
    to.to_k = copied.k.data;
    to.to_v = copied.v.data;
    to.rows = rows_of_keys(p, inputs.k);
    const std::int64_t of_row =
        p.head_dim / columns_of(p, p.head_dim) + p.head_dim_v / columns_of(p, p.head_dim_v);
    items = items + core::Size(to.rows) * p.heads_k * of_row;
  }
  if (items.value() == 0) return;
  constexpr std::int64_t kThreads = 256;
  LaunchConfig launch;
  launch.grid[0] = core::divide_up(items, kThreads).value();
  launch.block = static_cast<unsigned>(kThreads);
  std::array<void*, 1> arguments{&to};
  kernel.launch(launch, stream, arguments.data());
}

}  // namespace attn::cuda
