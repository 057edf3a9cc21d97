#include "cuda/append_kv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "core/cache_type.hpp"
#include "core/hadamard.hpp"
#include "cuda/codegen/config_text.hpp"
#include "cuda/device/kernels/append_kv_params.cuh"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"
#include "cuda/jit/kernels_by_key.hpp"

namespace attn::cuda {
namespace {

// All that the code of a part depends on.
struct PartConfig {
  DType source = DType::f32, weight = DType::f32;
  CacheType target = CacheType::f32;
  std::int64_t dim = 0, rope_dim = 0, hadamard = 1;
  int wide_from = 1, wide_to = 1;  // elements of a load and a store
  bool norm = false, weighted = false, scaled = false, writes_scale = false;
  bool operator==(const PartConfig&) const = default;
};

// Elements of a packet of 8 bytes, with which a warp has a row of 128 elements of 16 bits; 1 where
// addresses or the head size do not allow it.
int packet_of(const Tensor& t, std::int64_t dim) {
  const std::int64_t elements = 8 / static_cast<std::int64_t>(size_of(t.dtype));
  const bool fits = t.dtype != DType::u8 && dim % elements == 0 && alignment_of(t) % 8 == 0;
  return fits ? static_cast<int>(elements) : 1;
}

struct AppendConfig {
  std::array<PartConfig, 3> part;
  std::size_t count = 0;
  bool first_is_q = false, interleaved = false;
  bool operator==(const AppendConfig&) const = default;

  explicit AppendConfig(const core::AppendCall& call)
      : count(call.count),
        first_is_q(!call.all[0].cached),
        interleaved(call.rope_dim > 0 && call.interleaved) {
    for (std::size_t i = 0; i < count; ++i) {
      const core::AppendPart& p = call.all[i];
      part[i] = {.source = p.from.dtype,
                 .weight = p.weight.dtype,
                 .target = p.type,
                 .dim = p.dim(),
                 .rope_dim = p.rope ? call.rope_dim : 0,
                 .hadamard = p.hadamard ? core::hadamard_size(p.dim()) : 1,
                 .wide_from = packet_of(p.from, p.dim()),
                 .wide_to = packet_of(p.to, p.dim()),
                 .norm = p.norm,
                 .weighted = p.weight.given(),
                 .scaled = p.scale.given(),
                 .writes_scale = p.writes_scale};
    }
  }
};

std::string text_of(const PartConfig& c, bool interleaved) {
  return fmt::format(
      "attn::device::AppendPart<attn::device::{}, {}, {}, {}, {}, attn::device::{}, {}, {}, {}, "
      "{}, "
      "attn::device::CacheTarget::{}, attn::device::AppendScale::{}>",
      element_type(c.source), c.wide_from, c.wide_to, c.dim, c.norm, element_type(c.weight),
      c.weighted, c.rope_dim, interleaved, c.hadamard, name(c.target),
      c.writes_scale ? "chosen"
      : c.scaled     ? "given"
                     : "none");
}

Source source_of(const AppendConfig& config) {
  std::string parts;
  for (std::size_t i = 0; i < config.count; ++i) {
    parts += ",\n    " + text_of(config.part[i], config.interleaved);
  }
  Source source;
  source.name = "append_kv";
  source.entry = "attn_append_kv";
  source.text = fmt::format(
      "#include \"ptx/math.cuh\"\n#include \"kernels/append_kv.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(attn::device::kAppendThreads)\n"
      "attn_append_kv(const __grid_constant__ attn::device::AppendParams p) {{\n"
      "  attn::device::append_kv<{}{}>(p);\n"
      "}}\n",
      config.first_is_q ? 1 : 0, parts);
  return source;
}

// Of a tensor [blocks, rows, heads, ...] or packed [rows, heads, ...].
void set_strides(const Tensor& t, bool packed, long long& block, long long& row, long long& head) {
  const std::size_t of_row = packed ? 0 : 1;
  block = packed ? 0 : t.strides[0];
  row = t.strides[of_row];
  head = t.strides[of_row + 1];
}

device::AppendPartParams parameters_of(const core::AppendCall& call, const core::AppendPart& p) {
  device::AppendPartParams part{};
  part.from = p.from.data;
  part.to = p.to.data;
  part.weight = p.weight.data;
  part.scale = static_cast<float*>(p.scale.data);
  part.heads = static_cast<int>(p.heads());
  set_strides(p.from, call.packed, part.from_block, part.from_row, part.from_head);
  set_strides(p.to, call.packed && !p.cached, part.to_block, part.to_row, part.to_head);
  if (p.writes_scale) {
    set_strides(p.scale, false, part.scale_block, part.scale_row, part.scale_head);
  } else if (p.scale.given() && p.scale.shape[0] > 1) {
    part.scale_head = p.scale.strides[0];
  }
  return part;
}

const int* int_data(const Tensor& t) { return static_cast<const int*>(t.data); }
const float* floats(const Tensor& t) { return static_cast<const float*>(t.data); }

device::AppendParams parameters_of(const core::AppendCall& call) {
  const AppendInputs& in = call.inputs;
  device::AppendParams p{};
  for (std::size_t i = 0; i < call.count; ++i) {
    p.part[i] = parameters_of(call, call.all[i]);
    p.heads += p.part[i].heads;
  }
  p.cu_seqlens = int_data(in.cu_seqlens);
  p.cache_seqlens = int_data(in.cache_seqlens);
  p.positions = int_data(in.positions);
  p.rope_positions = int_data(in.rope_positions);
  p.page_table = int_data(in.page_table);
  p.inv_freq = floats(in.inv_freq);
  p.cos = floats(in.cos);
  p.sin = floats(in.sin);
  p.cache_seqlens_stride = in.cache_seqlens.strides[0];
  std::copy_n(in.positions.strides.begin(), 2, p.positions_strides);
  std::copy_n(in.rope_positions.strides.begin(), 2, p.rope_positions_strides);
  std::copy_n(in.page_table.strides.begin(), 2, p.page_table_strides);
  p.cos_stride = in.cos.strides[0];
  p.sin_stride = in.sin.strides[0];
  p.has_tables = in.cos.rank > 0;
  p.table_rows = in.cos.shape[0];
  p.rows = call.rows;
  p.seqlen = call.seqlen;
  p.blocks = call.blocks;
  p.block_rows = call.block_rows;
  p.capacity = call.capacity;
  p.batch = static_cast<int>(call.batch);
  p.norm_eps = static_cast<float>(call.norm_eps);
  p.ring = call.ring;
  p.cached = call.cached;
  return p;
}

}  // namespace

Source append_kv_source(const core::AppendCall& call) { return source_of(AppendConfig(call)); }

void append_kv(const core::AppendCall& call, const Context& context) {
  const int ordinal = call.all[0].from.device.index;
  const ContextGuard guard(ordinal);
  device::AppendParams parameters = parameters_of(call);
  const std::int64_t rows = parameters.rows * parameters.heads;
  if (rows == 0) return;
  // A warp a head of a row, while these are no more than half of what an H100 runs at once; of
  // more, as in prompts, a warp takes up to eight, for which it looks once where the row goes.
  constexpr std::int64_t kFewWarps = 1 << 12;
  parameters.together = static_cast<int>(std::clamp<std::int64_t>(rows / kFewWarps, 1, 8));
  const std::int64_t warps =
      parameters.rows * ((parameters.heads + parameters.together - 1) / parameters.together);
  // Past 2^16 blocks of threads warps go on.
  constexpr std::int64_t kWarps = device::kAppendThreads / 32, kMostBlocksAtOnce = 1 << 16;
  LaunchConfig launch;
  launch.block = device::kAppendThreads;
  launch.grid[0] = static_cast<unsigned>(
      std::min<std::int64_t>((warps + kWarps - 1) / kWarps, kMostBlocksAtOnce));
  launch.shared_bytes = kWarps * device::kAppendRow * sizeof(float);
  std::array<void*, 1> arguments{&parameters};
  const AppendConfig config(call);
  kernels_by_key<AppendConfig>()
      .get(ordinal, config, context, [&] { return source_of(config); })
      .launch(launch, context.stream, arguments.data());
}

}  // namespace attn::cuda
