#include "cuda/append_kv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "core/cache_type.hpp"
#include "core/hadamard.hpp"
#include "cuda/cached_row.hpp"
#include "cuda/codegen/config_text.hpp"
#include "cuda/device/kernels/append_kv_params.cuh"
#include "cuda/driver/device.hpp"
#include "cuda/jit/kernels_by_key.hpp"

namespace attn::cuda {
namespace {

// All that the code of a part depends on.
struct PartConfig {
  DType source = DType::f32, weight = DType::f32;
  CacheType target = CacheType::f32;
  std::int64_t dim = 0, rope_dim = 0, hadamard = 0;
  int wide = 1, lanes = 1;  // columns that are loaded at once; lanes of a warp that have a row
  bool norm = false, weighted = false, scaled = false, writes_scale = false;
  bool operator==(const PartConfig&) const = default;
};

unsigned wide_of(const AppendInputs& in) {
  const auto bit = [](const Tensor& t, device::AppendWide wide) {
    return t.given() && t.dtype == DType::i64 ? unsigned{wide} : 0;
  };
  return bit(in.cu_seqlens, device::kAppendCuSeqlens) |
         bit(in.cache_seqlens, device::kAppendCacheSeqlens) |
         bit(in.positions, device::kAppendPositions) |
         bit(in.rope_positions, device::kAppendRopePositions) |
         bit(in.page_table, device::kAppendPageTable) | bit(in.seqused, device::kAppendSeqused);
}

struct AppendConfig {
  std::array<PartConfig, 3> part;
  std::size_t count = 0;
  bool first_is_q = false, interleaved = false;
  unsigned wide = 0;  // bits of device::AppendWide
  bool operator==(const AppendConfig&) const = default;

  explicit AppendConfig(const core::AppendCall& call)
      : count(call.count),
        first_is_q(!call.all[0].cached),
        interleaved(call.rope_dim > 0 && call.interleaved),
        wide(wide_of(call.inputs)) {
    for (std::size_t i = 0; i < count; ++i) {
      const core::AppendPart& p = call.all[i];
      const int wide = wide_columns(p.from, p.type, p.to);
      part[i] = {.source = p.from.dtype,
                 .weight = p.weight.dtype,
                 .target = p.type,
                 .dim = p.dim(),
                 .rope_dim = p.rope ? call.rope_dim : 0,
                 .hadamard = p.hadamard ? core::hadamard_size(p.dim()) : 0,
                 .wide = wide,
                 .lanes = lanes_of_row(p.dim(), wide),
                 .norm = p.norm,
                 .weighted = p.weight.given(),
                 .scaled = p.scale.given(),
                 .writes_scale = p.writes_scale};
    }
  }
};

std::string text_of(const PartConfig& c, bool interleaved) {
  const std::string row =
      fmt::format("CachedRow<{}, CacheTarget::{}, {}, {}, {}, {}>", element_type(c.source),
                  name(c.target), c.dim, c.wide, c.lanes, c.hadamard);
  return fmt::format("AppendPart<{}, {}, {}, {}, {}, {}, {}, AppendScale::{}>", row, c.dim, c.norm,
                     element_type(c.weight), c.weighted, c.rope_dim, interleaved,
                     c.writes_scale ? "chosen"
                     : c.scaled     ? "given"
                                    : "none");
}

// Thread blocks of a multiprocessor that leave a thread the registers it needs.
int blocks_of(const PartConfig& c) {
  const bool small = c.hadamard == 0 && !c.norm && c.wide > 1 && c.dim <= c.lanes * c.wide;
  if (!small) return 1;
  if (c.rope_dim == 0) return 4;
  return core::is_scaled(c.target) || core::is_blocked(c.target) ? 1 : 3;
}

Source source_of(const AppendConfig& config) {
  std::string parts;
  int blocks = 4;
  for (std::size_t i = 0; i < config.count; ++i) {
    parts += ",\n    " + text_of(config.part[i], config.interleaved);
    blocks = std::min(blocks, blocks_of(config.part[i]));
  }
  Source source;
  source.name = "append_kv";
  source.entry = "attn_append_kv";
  source.text = fmt::format(
      "#include \"ptx/math.cuh\"\n#include \"kernels/append_kv.cuh\"\n"
      "using namespace attn::device;\n"
      "extern \"C\" __global__ void __launch_bounds__(kAppendThreads, {})\n"
      "attn_append_kv(const __grid_constant__ AppendParams p) {{\n"
      "  append_kv<{}, {}{}>(p);\n"
      "}}\n",
      blocks, config.first_is_q ? 1 : 0, config.wide, parts);
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

const float* floats(const Tensor& t) { return static_cast<const float*>(t.data); }

device::AppendParams parameters_of(const core::AppendCall& call) {
  const AppendInputs& in = call.inputs;
  device::AppendParams p{};
  for (std::size_t i = 0; i < call.count; ++i) {
    p.part[i] = parameters_of(call, call.all[i]);
  }
  p.cu_seqlens = in.cu_seqlens.data;
  p.cache_seqlens = in.cache_seqlens.data;
  p.positions = in.positions.data;
  p.rope_positions = in.rope_positions.data;
  p.page_table = in.page_table.data;
  p.seqused = in.seqused.data;
  p.inv_freq = floats(in.inv_freq);
  p.cos = floats(in.cos);
  p.sin = floats(in.sin);
  p.seqused_stride = in.seqused.strides[0];
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
  std::int64_t heads = 0;
  for (std::size_t i = 0; i < call.count; ++i) heads += call.all[i].heads();
  if (parameters.rows * heads == 0) return;
  // A warp a head of a row, while these are no more than half of what an H100 runs at once; of
  // more, as in prompts, a warp takes up to 16, for which it looks once where the row goes.
  constexpr std::int64_t kFewWarps = 1 << 12;
  const auto together = std::clamp<std::int64_t>(parameters.rows * heads / kFewWarps, 1, 16);
  parameters.together = static_cast<int>(together);
  for (std::size_t i = 0; i < call.count; ++i) {
    parameters.groups += static_cast<int>((call.all[i].heads() + together - 1) / together);
  }
  const std::int64_t warps = parameters.rows * parameters.groups;
  // Past 2^16 blocks of threads warps go on.
  constexpr std::int64_t kWarps = device::kAppendThreads / 32, kMostBlocksAtOnce = 1 << 16;
  LaunchConfig launch;
  launch.block = device::kAppendThreads;
  launch.grid[0] = static_cast<unsigned>(
      std::min<std::int64_t>((warps + kWarps - 1) / kWarps, kMostBlocksAtOnce));
  if (call.rope_dim > 0) launch.shared_bytes = kWarps * device::kAppendMemory * sizeof(float);
  std::array<void*, 1> arguments{&parameters};
  const AppendConfig config(call);
  kernels_by_key<AppendConfig>()
      .get(ordinal, config, context, [&] { return source_of(config); })
      .launch(launch, context.stream, arguments.data());
}

}  // namespace attn::cuda
