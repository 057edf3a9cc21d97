#include "cuda/backward/buffers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory_resource>

#include "attn/error.hpp"
#include "core/expr/build.hpp"
#include "core/tensor/size.hpp"
#include "core/text/echo.hpp"
#include "core/validate/validate.hpp"
#include "cuda/backward/source.hpp"
#include "cuda/backward/workspace.hpp"
#include "cuda/driver/counters.hpp"
#include "cuda/forward/source.hpp"
#include "cuda/kernels/backward_tiles.hpp"
#include "cuda/plan/choose_buffers.hpp"

namespace attn::cuda {
namespace {

bool may_have_gradient(const expr::Buffer& buffer) {
  return is_floating(buffer.tensor().dtype) && !expr::is_scalar(buffer);
}

// Calls f(buffer) for those of the score that may have a gradient; allocates nothing.
template <class F>
void for_each_buffer(const Problem& p, F f) {
  if (p.score.empty()) return;
  core::CallMemory memory;
  std::pmr::vector<const expr::Buffer*> buffers(&memory.resource());
  expr::collect_buffers(p.score, buffers);
  for (const expr::Buffer* buffer : buffers) {
    if (may_have_gradient(*buffer)) f(*buffer);
  }
}

// How many float64 the float32 elements of all splits take: sums of other buffers lie beside them.
core::Size doubles_of_splits(core::Size size, int splits) {
  return core::divide_up(size * splits, sizeof(double) / sizeof(float));
}

LaunchConfig element_launch(std::int64_t count) {
  constexpr unsigned kThreads = 256;  // kBackwardBuffersThreads
  LaunchConfig launch;
  launch.grid[0] = core::divide_up(count, kThreads).value();
  launch.block = kThreads;
  return launch;
}

}  // namespace

std::vector<std::string> gradient_names(const Problem& p) {
  std::vector<std::string> names;
  if (p.key_list > 0) return names;  // refused by check_buffer_gradients()
  for_each_buffer(p, [&](const expr::Buffer& buffer) { names.push_back(buffer.name()); });
  return names;
}

core::Size buffer_sums_bytes(const Problem& p, bool deterministic) {
  const std::vector<std::string> names = gradient_names(p);
  if (names.empty()) return 0;
  const OwnElements own = own_elements(p.score);
  const auto of_sum = static_cast<std::int64_t>(sum_bytes(deterministic));
  core::Size most = 0;
  for (const BackwardConfig& config : possible_buffers_configs(p, names, deterministic)) {
    const int splits = num_splits(p, config);
    core::Size bytes = 0;
    for_each_buffer(p, [&](const expr::Buffer& buffer) {
      const core::Size size = buffer.tensor().size();
      if (!own.has(buffer.name())) {
        bytes = bytes + size * of_sum;
      } else if (splits > 1) {
        bytes = bytes + doubles_of_splits(size, splits) * sizeof(double);
      }
    });
    most = std::max(most, bytes);
  }
  return most;
}

core::Size buffer_blocks(const Problem& p, bool deterministic) {
  const std::vector<std::string> names = gradient_names(p);
  if (names.empty()) return 0;
  core::Size most = core::divide_up(buffer_sums_bytes(p, deterministic), 8 * 256);
  for_each_buffer(p, [&](const expr::Buffer& buffer) {
    most = std::max(most, core::divide_up(buffer.tensor().size(), 256));
  });
  for (const BackwardConfig& config : possible_buffers_configs(p, names, deterministic)) {
    most = std::max({most, num_tiles(p, config), core::Size(p.batch) * p.heads_q});
  }
  return most;
}

void check_buffer_gradients(const Problem& p, const Gradients& gradients) {
  if (gradients.buffers.empty()) return;
  if (p.key_list > 0) {
    throw Error(ErrorCode::unsupported,
                fmt::format("the gradient of the buffer '{}' is asked for and key_list is {}; "
                            "accepted by backward over lists of keys on the cuda backend are dq, "
                            "dk, dv and dsink (problem {})",
                            gradients.buffers.front().first, p.key_list, core::echo(p)));
  }
  for_each_buffer(p, [&](const expr::Buffer& buffer) {
    for (const auto& [name, tensor] : gradients.buffers) {
      if (name != buffer.name() || tensor.size() <= buffer.tensor().size()) continue;
      throw Error(ErrorCode::unsupported,
                  fmt::format("the gradient of the buffer '{}' has {} elements, and the buffer is "
                              "declared with {}, for which the plan has workspace; accepted by "
                              "backward on the cuda backend are buffers that are declared with "
                              "their sizes, not 0 (problem {})",
                              name, tensor.size(), buffer.tensor().size(), core::echo(p)));
    }
  });
}

BufferLaunches::BufferLaunches(const Problem& p, const BackwardTensors& tensors,
                               const std::vector<std::string>& names, const BackwardWish& wish,
                               int sm_count)
    : config(buffers_config(p, tensors, names, wish)),
      expressions(expression_pack(p.mask, score_expression(p), p.scale(),
                                  backward_precise_math(*config.kernel, p.dtype))),
      derivatives(p.score, names),
      splits(num_splits(p, config)),
      tiles(num_tiles(p, config).value()),
      sums_offset(row_terms_bytes(p).value()) {
  const OwnElements owning = own_elements(p.score);
  for (const std::string& name : names) {
    own.push_back(owning.has(name));
    covered.push_back(own.back() && covers_elements(p, name));
  }
  add_launch.grid[0] = config.kernel->stays ? std::min<std::int64_t>(tiles, sm_count) : tiles;
  add_launch.block = static_cast<unsigned>(config.tiling.threads());
  add_launch.shared_bytes = static_cast<unsigned>(config.tiling.shared_bytes);
}

void BufferLaunches::launch(const device::BackwardParams& parameters, BackwardMaps* maps,
                            const Inputs& inputs, const Gradients& gradients,
                            const Context& context) const {
  auto* const first =
      reinterpret_cast<double*>(static_cast<std::byte*>(context.workspace.data) + sums_offset);
  double* next = first;
  const auto doubles_of_sum =
      static_cast<long long>(sum_bytes(config.buffers.exact_sums) / sizeof(double));
  core::CallMemory memory;
  std::pmr::vector<BufferTarget> targets(&memory.resource());
  std::pmr::vector<device::BufferGradientParams<void>> stores(&memory.resource());
  for (std::size_t i = 0; i < gradients.buffers.size(); ++i) {
    const Tensor& to = gradients.buffers[i].second;
    BufferTarget target;
    device::BufferGradientParams<void> stored{};
    stored.to = static_cast<float*>(to.data);
    stored.size = to.size();
    std::ranges::fill(stored.shape, 1);
    // Row-major with the last dimension last of four.
    long long size = 1;
    for (std::int32_t d = to.rank - 1; d >= 0; --d) {
      const auto at = static_cast<std::size_t>(d);
      stored.shape[4 - to.rank + d] = to.shape[at];
      stored.strides[4 - to.rank + d] = to.strides[at];
      target.strides[at] = splits > 1 ? size : to.strides[at];
      size *= to.shape[at];
    }
    if (!own[i]) {
      stored.sums = target.sums = next;
      next += size * doubles_of_sum;
    } else if (splits > 1) {
      stored.elements = target.elements = reinterpret_cast<float*>(next);
      stored.splits = splits;
      target.split_stride = size;
      next += doubles_of_splits(size, splits).value();
    } else {
      target.elements = stored.to;
    }
    targets.push_back(target);
    stores.push_back(stored);
  }
  const auto store_all = [&](device::BufferGradientParams<void>& stored) {
    std::array<void*, 1> argument{&stored};
    if (stored.size == 0) return;
    store->launch(element_launch(stored.size), context.stream, argument.data());
  };
  const auto is_summed = [](const device::BufferGradientParams<void>& stored) {
    return stored.sums != nullptr || stored.splits > 0;
  };
  // What no tile reaches is 0.
  const bool all_covered = std::ranges::find(covered, false) == covered.end();
  if (long long count = next - first; count > 0 && !all_covered) {
    double* from = first;
    std::array<void*, 2> cleared{&from, &count};
    clear->launch(element_launch(count), context.stream, cleared.data());
  }
  for (std::size_t i = 0; i < stores.size(); ++i) {
    if (!covered[i] && !is_summed(stores[i])) store_all(stores[i]);
  }
  std::pmr::vector<std::byte> expression_bytes(expressions.size(), &memory.resource());
  std::pmr::vector<std::byte> packed(derivatives.size(), &memory.resource());
  expressions.pack(inputs.buffers, expression_bytes.data());
  derivatives.pack(targets, splits, inputs.buffers, packed.data());
  device::BackwardParams own_parameters = parameters;
  own_parameters.num_tiles = static_cast<int>(tiles);
  own_parameters.counter = config.kernel->stays && add_launch.grid[0] < tiles
                               ? work_counter(context.stream)
                               : device::kNoCounter;
  std::array<void*, 4> arguments{&own_parameters, expression_bytes.data(), packed.data(), maps};
  if (tiles > 0) add->launch(add_launch, context.stream, arguments.data());
  for (device::BufferGradientParams<void>& stored : stores) {
    if (is_summed(stored)) store_all(stored);
  }
}

}  // namespace attn::cuda
