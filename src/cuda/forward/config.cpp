#include "cuda/forward/config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "attn/error.hpp"
#include "core/philox.hpp"
#include "cuda/codegen/expression_factors.hpp"
#include "cuda/codegen/expression_text.hpp"
#include "cuda/forward/kernel_name.hpp"
#include "cuda/heuristics/forward_papers.hpp"
#include "cuda/heuristics/forward_portable.hpp"
#include "cuda/heuristics/forward_sm90.hpp"
#include "cuda/kernel_parts.hpp"

namespace attn::cuda {
namespace {

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr int round_up(int a, int b) { return (a + b - 1) / b * b; }

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
  if (kernel != ForwardKernel::sm90 && kernel != ForwardKernel::sm80) return {};
  if (std::string why = obstacle_16_bit(p, tensors); !why.empty()) return why;
  if (kernel == ForwardKernel::sm90 && arch.number != 90) {
    return fmt::format("the architecture is {}; accepted is sm_90a", to_string(arch));
  }
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
constexpr std::array kKernels{ForwardKernel::sm90, ForwardKernel::sm80, ForwardKernel::simt,
                              ForwardKernel::flash_attention, ForwardKernel::standard};
constexpr std::size_t kFastKernels = 3;

std::span<const ForwardKernel> candidates(std::string_view forced) {
  const std::span all(kKernels);
  return forced.empty() ? all.first(kFastKernels) : all;
}

bool runs_by_name_only(std::string_view kernel) {
  return std::ranges::any_of(std::span(kKernels).subspan(kFastKernels),
                             [&](ForwardKernel k) { return name(k) == kernel; });
}

// Chooses a tile shape; nothing where none suits. parts: of a shape of forward_sm90.
std::optional<ForwardConfig> configured(ForwardKernel kernel, const Problem& p, Arch arch,
                                        const ForwardTensors& tensors, std::int32_t num_splits,
                                        std::string_view parts) {
  ForwardConfig config;
  config.kernel = kernel;
  config.splits = num_splits > 1;
  config.features = features_of(p, tensors);
  config.classified = config.features.mask_reads_buffers;
  bool fits = false;
  switch (kernel) {
    case ForwardKernel::sm90:
      fits = shape_sm90(config, p, parts);
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

int packed_group(const Problem& p, int block_m, int rows) {
  const std::int64_t group = p.heads_q / p.heads_k;
  if (group == 1 || rows % group != 0) return 1;
  const std::int64_t apart = group * divide_up(p.seqlen_q, block_m);
  const std::int64_t together = divide_up(p.seqlen_q * group, block_m);
  return 10 * together <= 9 * apart ? static_cast<int>(group) : 1;
}

std::string_view name(ForwardKernel kernel) noexcept {
  switch (kernel) {
    case ForwardKernel::sm90:
      return "forward_sm90";
    case ForwardKernel::sm80:
      return "forward_sm80";
    case ForwardKernel::flash_attention:
      return "forward_flash_attention";
    case ForwardKernel::standard:
      return "forward_standard";
    case ForwardKernel::simt:
      break;
  }
  return "forward_simt";
}

int ForwardConfig::threads() const noexcept {
  return 32 * warps + (kernel == ForwardKernel::sm90 ? 128 : 0);
}

int ForwardConfig::keys_at_once() const noexcept {
  return kernel == ForwardKernel::flash_attention ? block_n * stages : block_n;
}

int ForwardConfig::parts() const noexcept {
  return kernel == ForwardKernel::sm90 ? warps / 4 : warps;
}

bool ForwardConfig::stores_boxes() const noexcept {
  return kernel == ForwardKernel::sm90 && stages_q > 1 && !splits && group == 1 &&
         !features.packed_q &&
         divide_up(features.head_dim_v, 64) <= divide_up(features.head_dim, 64);
}

std::int64_t ForwardConfig::shared_bytes() const noexcept {
  if (kernel == ForwardKernel::flash_attention) return forward_papers_shared_bytes(*this);
  if (kernel != ForwardKernel::sm90) return forward_portable_shared_bytes(*this);
  // This counts what ForwardSm90Layout lays out: Q, K, V in panels of 64 columns, barriers, four
  // tiles at hand.
  const std::int64_t panels_k = divide_up(features.head_dim, 64);
  const std::int64_t panels_v = divide_up(features.head_dim_v, 64);
  const std::int64_t qs = std::int64_t{stages_q} * warps / 4;
  const std::int64_t barriers = 16 * qs + 16 * (stages_k + stages) + 72;
  return qs * 64 * 128 * panels_k + block_n * 128 * (stages_k * panels_k + stages * panels_v) +
         round_up(static_cast<int>(barriers), 16) + std::int64_t{4} * (48 + 16 * warps / 4) + 32;
}

std::string forward_kernel_name(Algorithm algorithm, std::string_view kernel) {
  const KernelName named = split_kernel_name(kernel);
  std::string_view base, shape;
  switch (algorithm) {
    case Algorithm::flash_attention:
      base = name(ForwardKernel::flash_attention);
      break;
    case Algorithm::block_sparse:
      base = name(ForwardKernel::flash_attention);
      shape = "sparse";
      break;
    case Algorithm::standard:
      base = name(ForwardKernel::standard);
      break;
    case Algorithm::flash_attention_2:
    case Algorithm::flash_decoding:
    case Algorithm::memory_efficient:
      base = "forward_sm90, forward_sm80 or forward_simt";
      break;
    case Algorithm::automatic:
      return std::string(kernel);
  }
  const bool by_name_only = runs_by_name_only(base);
  if (!kernel.empty() && (by_name_only ? named.kernel != base : runs_by_name_only(named.kernel))) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("kernel is '{}' and algorithm is {}; accepted with it is {}", kernel,
                            name(algorithm), base));
  }
  if (!by_name_only) return std::string(kernel);
  std::string result(base);
  for (const std::string_view part : {shape, named.shape}) {
    if (part.empty() || result.ends_with(part)) continue;
    result += result == base ? '/' : '_';
    result += part;
  }
  return result;
}

Algorithm algorithm_of(ForwardKernel kernel, bool skips_empty) noexcept {
  switch (kernel) {
    case ForwardKernel::flash_attention:
      return skips_empty ? Algorithm::block_sparse : Algorithm::flash_attention;
    case ForwardKernel::standard:
      return Algorithm::standard;
    case ForwardKernel::sm90:
    case ForwardKernel::sm80:
    case ForwardKernel::simt:
      break;
  }
  return Algorithm::flash_attention_2;
}

ForwardConfig choose_forward(const Problem& problem, Arch arch, const ForwardTensors& tensors,
                             std::int32_t num_splits, std::string_view forced) {
  const KernelName named = split_kernel_name(forced);
  if (!named.shape.empty() && named.kernel != name(ForwardKernel::sm90) &&
      named.kernel != name(ForwardKernel::flash_attention)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("kernel is '{}'; only forward_sm90 and forward_flash_attention take "
                            "parts of a tile shape",
                            forced));
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
                              forced, config->shared_bytes(), kSharedBytes));
    }
    if (config) return *config;
    why = kernel == ForwardKernel::flash_attention
              ? "Q, P, K and V of a block of 64 keys do not fit into shared memory"
              : "no tile shape suits page_size " + std::to_string(problem.page_size);
  }
  if (!forced.empty() && why.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("kernel is '{}'; accepted are forward_sm90, forward_sm80, "
                            "forward_simt, forward_flash_attention and forward_standard",
                            forced));
  }
  throw Error(ErrorCode::unsupported,
              fmt::format("no kernel of the cuda backend takes {}: {}", to_string(problem), why));
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

core::Size num_tiles(const Problem& p, const ForwardConfig& config, std::int32_t num_splits) {
  if (config.kernel == ForwardKernel::flash_attention) return core::Size(p.heads_q) * p.batch;
  return core::divide_up(core::Size(p.seqlen_q) * config.group, config.block_m) *
         (p.heads_q / config.group) * p.batch * num_splits;
}

std::int32_t choose_splits(const Problem& p, const ForwardConfig& config, int sm_count) {
  if (runs_by_name_only(name(config.kernel))) return 1;
  const core::Size all = num_tiles(p, config, 1);
  const std::int64_t tiles = all.value();
  const std::int64_t blocks = divide_up(p.seqlen_k, config.block_n);
  // A split reads at least two blocks; partial results cost memory traffic too, so the machine is
  // split for only where it would stay a fifth empty.
  if (tiles == 0 || all * 10 >= core::Size(8) * sm_count || blocks < 4) return 1;
  const std::int64_t most =
      std::min<std::int64_t>({kMostSplits, blocks / 2, divide_up(2 * sm_count, tiles)});
  std::int64_t best = 1;
  double best_share = 0;
  for (std::int64_t splits = 1; splits <= most; ++splits) {
    // Rounds of the machine times blocks of each, against the work there is.
    const std::int64_t rounds = divide_up(tiles * splits, sm_count);
    const double share = static_cast<double>(tiles * blocks) /
                         static_cast<double>(rounds * divide_up(blocks, splits) * sm_count);
    if (share > best_share * 1.05) {
      best = splits;
      best_share = share;
    }
  }
  return static_cast<std::int32_t>(best);
}

}  // namespace attn::cuda
