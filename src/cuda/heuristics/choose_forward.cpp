#include "cuda/heuristics/choose_forward.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "attn/error.hpp"
#include "core/philox.hpp"
#include "core/text/echo.hpp"
#include "cuda/codegen/expression_factors.hpp"
#include "cuda/codegen/expression_text.hpp"
#include "cuda/heuristics/forward_few_rows.hpp"
#include "cuda/heuristics/forward_kernel_name.hpp"
#include "cuda/heuristics/forward_papers.hpp"
#include "cuda/heuristics/forward_portable.hpp"
#include "cuda/heuristics/forward_sm90.hpp"
#include "cuda/heuristics/forward_tiles.hpp"
#include "cuda/kernel_parts.hpp"

namespace attn::cuda {
namespace {

constexpr std::int64_t kSharedBytes = 227 << 10;  // of a block, on 9.0: the most of all

// Why a kernel does not take the problem; empty when it does.
std::string obstacle_16_bit(const Problem& p, const ForwardTensors& tensors) {
  if (p.dtype != DType::bf16 && p.dtype != DType::f16) {
    return fmt::format("dtype is {}; accepted are bf16 and f16", name(p.dtype));
  }
  for (const std::int64_t d : {p.head_dim, p.head_dim_v}) {
    if (d % 8 != 0 || d > 256) {
      return fmt::format("a head_dim is {}; accepted are multiples of 8 up to 256", d);
    }
  }
  if (!tensors.aligned) return "an address or stride is not a multiple of 16 bytes";
  return {};
}

std::string obstacle(ForwardKernel kernel, const Problem& p, Arch arch,
                     const ForwardTensors& tensors) {
  if (p.dtype == DType::f64) return "dtype is f64; accepted are f32, bf16 and f16";
  switch (kernel) {
    case ForwardKernel::sm90:
    case ForwardKernel::sm80:
    case ForwardKernel::few_rows:
      break;
    case ForwardKernel::simt:
    case ForwardKernel::flash_attention:
    case ForwardKernel::standard:
      return {};
  }
  if (std::string why = obstacle_16_bit(p, tensors); !why.empty()) return why;
  if (kernel == ForwardKernel::sm90 && arch.number != 90) {
    return fmt::format("the architecture is {}; accepted is sm_90a", to_string(arch));
  }
  if (kernel == ForwardKernel::few_rows) return few_rows_obstacle(p, arch);
  return {};
}

ForwardFeatures features_of(const Problem& p, const ForwardTensors& tensors) {
  ForwardFeatures f;
  f.dtype = p.dtype;
  f.head_dim = static_cast<int>(p.head_dim);
  f.head_dim_v = static_cast<int>(p.head_dim_v);
  f.packed_q = p.layout_q == Layout::packed;
  f.packed_k = p.layout_k == Layout::packed;
  f.paged = p.layout_k == Layout::paged;
  f.page_size = f.paged ? static_cast<int>(p.page_size) : 0;
  f.used_q = tensors.seqused_q;
  f.used_k = tensors.seqused_k || f.paged;
  f.sink = p.sink;
  f.dropout = p.dropout.probability > 0;
  f.dropout_flipped = core::dropout_rule(core::dropout_threshold(p.dropout.probability)).flipped;
  f.rng_state = f.dropout && p.dropout.rng_state;
  f.vector_o = tensors.aligned;
  f.mask_heads = depends_on(p.mask, expr::Op::head);
  f.mask_batches =
      depends_on(p.mask, expr::Op::batch) || f.packed_q || f.packed_k || f.used_q || f.used_k;
  f.mask_reads_buffers = mask_reads_buffers(p.mask);
  f.hides_keys = !p.mask.empty() || may_hide_keys(p.score);
  return f;
}

// Whether forward_sm90 may have to compute rows again: under a mask, and where it judges references
// late (device/kernels/forward_sm90/tiles.cuh, kFollowed).
bool is_followed(const ForwardFeatures& f, const Problem& p) {
  return f.hides_keys || (f.dtype == DType::bf16 && p.score.empty());
}

// Random bits come for 64 keys at a time, of which a tile may use 32.
int keys_with_dropout(int block_n, std::string_view parts) {
  constexpr int kFewest = 32, kKeysAtOnce = 64;
  if (block_n < kFewest) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("kernel is 'forward_sm90/{}', of {} keys, and the problem has dropout; "
                            "accepted with it are n{} to n256",
                            parts, block_n, kFewest));
  }
  return block_n < kKeysAtOnce ? kFewest : block_n / kKeysAtOnce * kKeysAtOnce;
}

// False where no shape suits the problem. parts: of a shape, that the caller names.
bool shape_sm90(ForwardConfig& config, const Problem& p, std::string_view parts) {
  const auto widest = static_cast<int>(std::max(p.head_dim, p.head_dim_v));
  for (const ForwardSm90Shape& row : forward_sm90_shapes()) {
    if (widest > row.head_dim || !holds(row.when, p)) continue;
    const ForwardSm90Shape shape = with_parts(row, parts);
    config.block_m = 64 * shape.warpgroups;
    config.block_n = shape.block_n;
    config.warps = 4 * shape.warpgroups;
    config.stages = shape.stages_v;
    config.stages_k = shape.stages_k;
    config.stages_q = shape.stages_q;
    config.take_turns = shape.take_turns;
    config.drops_by_product =
        config.features.dropout && !config.features.dropout_flipped && shape.drops_by_product;
    config.producer_registers = shape.producer_registers;
    config.consumer_registers = shape.consumer_registers;
    config.group = packed_group(p, config.block_m, 64);
    // Tiles of one to four blocks: +1 % at 512 keys, head sizes 64 and 128.
    if (widest <= 128 && holds(Condition::few_masked_keys, p)) config.near_blocks = 1;
    config.reason = shape.reason;
    config.allowed_spill_bytes =
        shape.spill_bytes + (is_followed(config.features, p) ? kForwardSm90FollowerSpills : 0);
    if (config.features.dropout) config.block_n = keys_with_dropout(config.block_n, parts);
    if (!config.features.paged) return true;
    // Pages and tiles must fit into each other; the copy engine writes 8 rows of a swizzle at
    // least. A tile of a power of two suits common page sizes.
    const int most = config.block_n;
    for (const int keys : {128, 64}) {
      if (keys > std::max(most, 64)) continue;
      config.block_n = keys;
      if (p.page_size % keys == 0) {
        config.page_rows = keys;
        return true;
      }
      if (keys % p.page_size == 0 && p.page_size % 8 == 0) {
        config.page_rows = static_cast<int>(p.page_size);
        return true;
      }
    }
    return false;
  }
  return false;
}

// The fast ones in the order of preference, then those that run by name only.
constexpr std::array kKernels{ForwardKernel::few_rows,
                              ForwardKernel::sm90,
                              ForwardKernel::sm80,
                              ForwardKernel::simt,
                              ForwardKernel::flash_attention,
                              ForwardKernel::standard};
constexpr std::size_t kFastKernels = 4;

std::span<const ForwardKernel> candidates(std::string_view forced) {
  const std::span all(kKernels);
  return forced.empty() ? all.first(kFastKernels) : all;
}

// Chooses a tile shape; nothing where none suits. parts: of a shape of forward_sm90.
std::optional<ForwardConfig> configured(ForwardKernel kernel, const Problem& p, Arch arch,
                                        const ForwardTensors& tensors, std::int32_t num_splits,
                                        std::string_view parts) {
  ForwardConfig config;
  config.kernel = kernel;
  config.splits = num_splits > 1;
  if (config.splits) config.combine = choose_combine(p.head_dim_v, num_splits);
  config.features = features_of(p, tensors);
  config.classified = config.features.mask_reads_buffers;
  bool fits = false;
  switch (kernel) {
    case ForwardKernel::sm90:
      fits = shape_sm90(config, p, parts);
      break;
    case ForwardKernel::few_rows:
      shape_few_rows(config, p);
      fits = true;
      break;
    case ForwardKernel::sm80:
    case ForwardKernel::simt:
      fits = shape_portable(config, p, arch);
      break;
    case ForwardKernel::flash_attention:
    case ForwardKernel::standard:
      fits = shape_of_papers(config, p, parts);
      break;
  }
  return fits ? std::optional(config) : std::nullopt;
}

}  // namespace

ForwardConfig choose_forward(const Problem& problem, Arch arch, const ForwardTensors& tensors,
                             std::int32_t num_splits, std::string_view forced) {
  const KernelName named = split_kernel_name(forced);
  if (!named.shape.empty() && named.kernel != name(ForwardKernel::sm90) &&
      named.kernel != name(ForwardKernel::flash_attention)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("kernel is '{}'; only forward_sm90 and forward_flash_attention take "
                            "parts of a tile shape",
                            core::echo(forced)));
  }
  std::string why;
  for (const ForwardKernel kernel : candidates(forced)) {
    if (!forced.empty() && named.kernel != name(kernel)) continue;
    why = obstacle(kernel, problem, arch, tensors);
    if (!why.empty()) continue;
    const auto config = configured(kernel, problem, arch, tensors, num_splits, named.shape);
    if (config && config->shared_bytes() > kSharedBytes) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("kernel is '{}': its tiles take {} bytes of shared memory; accepted "
                              "are at most {}",
                              core::echo(forced), config->shared_bytes(), kSharedBytes));
    }
    if (config) return *config;
    why = kernel == ForwardKernel::flash_attention
              ? "Q, P, K and V of a block of 64 keys do not fit into shared memory"
              : "no tile shape suits page_size " + std::to_string(problem.page_size);
  }
  if (!forced.empty() && why.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("kernel is '{}'; accepted are forward_sm90, forward_sm80, "
                            "forward_sm80_few_rows, forward_simt, forward_flash_attention and "
                            "forward_standard",
                            core::echo(forced)));
  }
  throw Error(ErrorCode::unsupported,
              fmt::format("no kernel of the cuda backend takes {}: {}", core::echo(problem), why));
}

std::vector<ForwardConfig> possible_forwards(const Problem& p, Arch arch, std::int32_t num_splits,
                                             std::string_view forced) {
  const ForwardTensors most{.seqused_q = true, .seqused_k = true};
  const auto [named, parts] = split_kernel_name(forced);
  if (runs_by_name_only(named)) return {choose_forward(p, arch, most, num_splits, forced)};
  std::vector<ForwardConfig> all;
  for (const ForwardKernel kernel : candidates({})) {
    if (!obstacle(kernel, p, arch, most).empty()) continue;
    if (auto config = configured(kernel, p, arch, most, num_splits, parts)) {
      all.push_back(std::move(*config));
    }
  }
  return all;
}

}  // namespace attn::cuda
