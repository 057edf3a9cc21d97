#include "cuda/heuristics/choose_backward.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "attn/error.hpp"
#include "core/text/echo.hpp"
#include "cuda/codegen/expression_factors.hpp"
#include "cuda/heuristics/backward_kernel_name.hpp"
#include "cuda/heuristics/backward_papers.hpp"
#include "cuda/heuristics/backward_portable.hpp"
#include "cuda/heuristics/backward_sm80.hpp"
#include "cuda/heuristics/backward_sm90.hpp"
#include "cuda/heuristics/backward_sm90_buffers.hpp"
#include "cuda/heuristics/one_pass_sizes.hpp"
#include "cuda/kernel_parts.hpp"
#include "cuda/kernels/shared_memory.hpp"
#include "cuda/limits.hpp"

namespace attn::cuda {
namespace {

using device::Gradient;

// Kernels in order of preference, then those that run by name only.
constexpr std::array kKernels{BackwardKernel::sm90,
                              BackwardKernel::sm80,
                              BackwardKernel::sm80_deterministic,
                              BackwardKernel::simt,
                              BackwardKernel::flash_attention,
                              BackwardKernel::standard};

// Why no kernel that computes S once takes the problem; empty where they may.
std::string obstacle_one_pass(const Problem& p) {
  for (const auto& [size, n] :
       {std::pair{"seqlen_q", p.seqlen_q}, std::pair{"seqlen_k", p.seqlen_k}}) {
    if (n == 0) return fmt::format("{} is 0; accepted is at least 1", size);
  }
  return {};
}

std::string obstacle_grid(BackwardKernel kernel, const Problem& p, const BackwardTensors& tensors,
                          const BackwardWish& wish) {
  const BackwardConfig config = backward_config(kernel, p, tensors, Gradient::all, wish);
  const std::int64_t most = most_shared_bytes(wish.arch);
  if (config.shared_bytes() > most) {
    return fmt::format("the shape takes {} bytes of shared memory; accepted are up to {}",
                       config.shared_bytes(), most);
  }
  // Two bits for each block of 64 queries and tile of keys: the others keep nothing of the kind.
  if (const core::Size blocks = one_pass_blocks(p, config); blocks > kMostBlocks) {
    return fmt::format("it has {} blocks of threads or tiles in a launch; accepted are up to {}",
                       core::to_string(blocks), kMostBlocks);
  }
  return {};
}

std::string obstacle_sm80(const Problem& p, const BackwardTensors& tensors,
                          const BackwardWish& wish) {
  if (wish.deterministic) {
    return "deterministic is true; accepted is false, as dQ is added to memory in no fixed order";
  }
  const BackwardSm80Shape* row = backward_sm80_shape(p, wish.arch);
  if (row == nullptr) {
    return fmt::format(
        "head_dim is {} and head_dim_v {} on {}; accepted is what {} bytes of shared memory hold",
        p.head_dim, p.head_dim_v, to_string(wish.arch), most_shared_bytes(wish.arch));
  }
  const BackwardSm80Shape shape = with_parts(*row, split_kernel_name(wish.kernel).shape);
  if (std::string why = obstacle_of(shape); !why.empty()) return why;
  return obstacle_grid(BackwardKernel::sm80, p, tensors, wish);
}

std::string obstacle_sm90(const Problem& p, const BackwardTensors& tensors,
                          const BackwardWish& wish) {
  if (wish.arch.number != 90) {
    return fmt::format("the architecture is {}; accepted is sm_90a", to_string(wish.arch));
  }
  if (!tensors.mapped) {
    return "the driver makes no tensor map of q, k, v or d_o; accepted are strides that it takes";
  }
  const BackwardSm90Shape* row = backward_sm90_shape(p);
  if (row == nullptr) {
    return fmt::format("head_dim is {} and head_dim_v {}; accepted are up to {}", p.head_dim,
                       p.head_dim_v, backward_sm90_shapes().back().head_dim);
  }
  const BackwardSm90Shape shape = with_parts(*row, split_kernel_name(wish.kernel).shape);
  if (std::string why = obstacle_of(shape, std::max(p.head_dim, p.head_dim_v)); !why.empty()) {
    return why;
  }
  if (shape.cluster > 1 && (shape.keys != 128 || shape.score_groups != 1 || !may_share_tiles(p))) {
    return fmt::format(
        "the shape has b{}_n{}_c{}, head_dim is {} and head_dim_v {}; accepted with b2 are n128, "
        "c1, "
        "256 and 256",
        shape.cluster, shape.keys, shape.score_groups, p.head_dim, p.head_dim_v);
  }
  return obstacle_grid(BackwardKernel::sm90, p, tensors, wish);
}

std::string obstacle_flash(const Problem& p, const BackwardTensors& tensors,
                           const BackwardWish& wish) {
  const BackwardConfig config =
      backward_config(BackwardKernel::flash_attention, p, tensors, Gradient::all, wish);
  const std::int64_t most = most_shared_bytes(wish.arch);
  if (config.shared_bytes() <= most) return {};
  return fmt::format(
      "Q, dO, K, V and their gradients, {} queries and keys at a time, take {} bytes of shared "
      "memory; accepted are up to {}",
      config.block_m, config.shared_bytes(), most);
}

// Why a kernel does not take the problem; empty when it does.
std::string obstacle(BackwardKernel kernel, const Problem& p, const BackwardTensors& tensors,
                     const BackwardWish& wish) {
  if (p.layout_k == Layout::paged) return "layout_k is paged; accepted are dense and packed";
  if (p.dtype == DType::f64) return "dtype is f64; accepted are f32, bf16 and f16";
  if (kernel == BackwardKernel::simt || kernel == BackwardKernel::standard) return {};
  if (kernel == BackwardKernel::flash_attention) return obstacle_flash(p, tensors, wish);
  if (p.dtype != DType::bf16 && p.dtype != DType::f16) {
    return fmt::format("dtype is {}; accepted are bf16 and f16", name(p.dtype));
  }
  for (const auto& [size, d] :
       {std::pair{"head_dim", p.head_dim}, std::pair{"head_dim_v", p.head_dim_v}}) {
    if (d % 8 != 0 || d > 256) {
      return fmt::format("{} is {}; accepted are multiples of 8 up to 256", size, d);
    }
  }
  if (!tensors.aligned) {
    return "an address or stride of q, k, v, d_o, dq, dk or dv is not a multiple of 16 bytes";
  }
  if (!is_one_pass(kernel)) return {};
  if (std::string why = obstacle_one_pass(p); !why.empty()) return why;
  return kernel == BackwardKernel::sm90 ? obstacle_sm90(p, tensors, wish)
                                        : obstacle_sm80(p, tensors, wish);
}

}  // namespace

BackwardKernel choose_backward_kernel(const Problem& p, const BackwardTensors& tensors,
                                      const BackwardWish& wish) {
  std::string why;
  const KernelName named = split_kernel_name(wish.kernel);
  for (const BackwardKernel kernel : kKernels) {
    const bool has_shape = is_one_pass(kernel) || kernel == BackwardKernel::flash_attention;
    if (named.kernel.empty() ? runs_by_name_only(kernel) : named.kernel != name(kernel)) continue;
    if (!has_shape && !named.shape.empty()) continue;
    why = obstacle(kernel, p, tensors, wish);
    if (why.empty()) return kernel;
  }
  if (why.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("kernel is '{}'; accepted by backward are backward_sm90, "
                            "backward_sm80 and backward_flash_attention, alone or with parts of a "
                            "tile shape (backward_sm90/q3_o3), backward_sm80_deterministic, "
                            "backward_simt and backward_standard",
                            core::echo(wish.kernel)));
  }
  throw Error(ErrorCode::unsupported,
              fmt::format("no kernel of the cuda backend takes the backward pass of {}: {}",
                          core::echo(p), why));
}

BackwardConfig backward_config(BackwardKernel kernel, const Problem& p,
                               const BackwardTensors& tensors, Gradient gradient,
                               const BackwardWish& wish) {
  BackwardConfig config;
  config.kernel = kernel;
  config.gradient = gradient;
  config.dtype = p.dtype;
  config.head_dim = static_cast<int>(p.head_dim);
  config.head_dim_v = static_cast<int>(p.head_dim_v);
  config.packed_q = p.layout_q == Layout::packed;
  config.packed_k = p.layout_k == Layout::packed;
  config.used_q = tensors.seqused_q;
  config.used_k = tensors.seqused_k;
  config.dropout = p.dropout.probability > 0;
  config.rng_state = config.dropout && p.dropout.rng_state;
  config.score_hides = may_hide_keys(p.score);
  const std::string_view parts = split_kernel_name(wish.kernel).shape;
  switch (kernel) {
    case BackwardKernel::sm90: {
      const BackwardSm90Shape shape = with_parts(*backward_sm90_shape(p), parts);
      // Order has places of its own for dQ, which a name may set otherwise.
      config.ordered =
          wish.deterministic || (parts.empty() && is_faster_in_order(config, p, shape));
      set_backward_sm90(config, p, shape);
      break;
    }
    case BackwardKernel::sm80:
      set_backward_sm80(config, p, with_parts(*backward_sm80_shape(p, wish.arch), parts));
      config.store_matrices = config.store_matrices && wish.arch.number >= 90;
      break;
    case BackwardKernel::sm80_deterministic:
    case BackwardKernel::sm80_buffers:
    case BackwardKernel::simt:
    case BackwardKernel::standard:
      set_backward_shape(config);
      break;
    case BackwardKernel::sm90_buffers:
      set_backward_sm90_buffers(config, *backward_sm90_buffers_shape(p));
      break;
    case BackwardKernel::flash_attention:
      set_backward_flash_shape(config, wish.arch, parts);
  }
  return config;
}

std::vector<BackwardConfig> backward_launches(BackwardKernel kernel, const Problem& p,
                                              const BackwardTensors& tensors,
                                              const AskedGradients& asked,
                                              const BackwardWish& wish) {
  std::vector<BackwardConfig> launches;
  const auto add = [&](Gradient gradient) {
    launches.push_back(backward_config(kernel, p, tensors, gradient, wish));
  };
  if (is_one_pass(kernel) || kernel == BackwardKernel::flash_attention) {
    add(Gradient::all);
    return launches;
  }
  if (kernel == BackwardKernel::standard) add(Gradient::ds);
  const bool together = asked.dk && asked.dv && holds_dk_and_dv(kernel, p);
  if (asked.dq) add(Gradient::dq);
  if (together) add(Gradient::dk_dv);
  if (asked.dk && !together) add(Gradient::dk);
  if (asked.dv && !together) add(Gradient::dv);
  return launches;
}

}  // namespace attn::cuda
