// What a forward kernel tells the library about itself, and what it is compiled for. Each has a
// folder beside this file, and a row in the table of forward_kernels.cpp; nothing else names it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "attn/plan.hpp"
#include "attn/run.hpp"
#include "core/tensor/size.hpp"
#include "cuda/codegen/config_text.hpp"
#include "cuda/device/params.cuh"
#include "cuda/driver/types.hpp"
#include "cuda/jit/compile.hpp"
#include "cuda/kernels/combine_shape.hpp"
#include "cuda/kernels/forward_features.hpp"
#include "cuda/kernels/tiling.hpp"

namespace attn::cuda {

struct ForwardConfig;

// Mirrors attn::device::ForwardMaps.
struct ForwardMaps {
  CUtensorMap q, k, v, o;
};

// What was chosen for a problem that only the kernel itself knows of. Immutable.
class ForwardShape {
 public:
  ForwardShape() = default;
  ForwardShape(const ForwardShape&) = delete;
  ForwardShape& operator=(const ForwardShape&) = delete;
  virtual ~ForwardShape() = default;

  // Constants that the kernel reads beside those that every kernel has (forward/source.cpp).
  virtual void print(const ForwardConfig& config, ConfigText& to) const = 0;
  // Whether it reads V as a kernel ahead of it lays it out (forward/transposed_values.hpp).
  virtual bool reads_transposed() const noexcept { return false; }
  // Text that stands before the kernel's header, in namespace attn::device.
  virtual std::string declarations(const ForwardConfig&) const { return {}; }
  // The tensor maps, of kernels whose row says that they are given them; nothing where the driver
  // does not take the strides.
  virtual std::optional<ForwardMaps> maps(const ForwardConfig&, const Problem&, const Inputs&,
                                          const Outputs&) const {
    return std::nullopt;
  }
};

// What a kernel is asked to choose a tile shape for.
struct ForwardRequest {
  const Problem& problem;
  Arch arch;
  const ForwardTensors& tensors;
  ForwardFeatures features;
  bool splits;             // keys are split
  std::string_view parts;  // of a tile shape, that the caller names ("n128_s2"), or empty
};

// Where obstacle is not empty the kernel does not take the problem, for that reason, and the rest
// is not set.
struct ForwardChoice {
  Tiling tiling{};
  std::shared_ptr<const ForwardShape> shape{};
  bool skips_empty = false;  // block_sparse: tiles that the mask empties are left out
  std::string obstacle{};

  static ForwardChoice refused(std::string why) { return {.obstacle = std::move(why)}; }
};

// What a plan needs to know of the device whose time it wants short.
struct Multiprocessors {
  Multiprocessors(int of_device, double bandwidth = 23)  // NOLINT(google-explicit-constructor)
      : count(of_device), bytes_per_ns(bandwidth) {}
  int count;
  double bytes_per_ns;  // that each reads from memory when all do; 23 on an H100
};

// A row of the table.
struct ForwardKernel {
  // Of the kernel, its header in device/kernels/ and the function in that header.
  std::string_view name;
  // Kernels of another algorithm than this one run only where they or that are asked for by name.
  Algorithm algorithm = Algorithm::flash_attention_2;
  // Whether the kernel takes the problem, and with which tile shape. Throws Error(invalid_argument)
  // for parts that it does not have.
  ForwardChoice (*choose)(const ForwardRequest& request);
  // Instead of the rule of plan/splits.cpp.
  std::int32_t (*choose_splits)(const Problem& problem, const ForwardConfig& config,
                                const Multiprocessors& device) = nullptr;
  // Bytes of the workspace, of a kernel that keeps something else there than parts of O, and where
  // it finds it.
  core::Size (*workspace)(const Problem& problem) = nullptr;
  void (*place)(device::ForwardParams& to, const Problem& problem, void* workspace) = nullptr;

  int launches = 1;           // one after the other, with ForwardParams::pass
  bool takes_parts = false;   // a name may go on with parts of a tile shape
  bool reads_maps = false;    // is given tensor maps
  bool stays = false;         // one thread block a multiprocessor, which takes tile after tile
  bool begins_early = false;  // while the kernel before ends, where nothing reads buffers
  bool tile_is_head = false;  // a thread block has all rows of a query head
  // Where sequences have lengths of their own, thread blocks stay and take one piece of a sequence
  // after the other (device/schedule/pieces.cuh); one that a single piece holds is stored whole.
  bool takes_pieces = false;
  bool takes_key_lists = false;
  bool takes_cache_types = false;   // of its own, of K and V
  bool tiles_of_max_logit = false;  // other tile shapes where the largest scores are asked for
  bool takes_float8 = false;        // Q, K and V that all are e4m3 or e5m2
  bool bounds_keys = false;         // takes more of the mask as bounds of the key

  bool runs_by_name_only() const noexcept { return algorithm != Algorithm::flash_attention_2; }
};

// How keys are split: into `count` pieces, or, where bits must not depend on the batch
// (PlanOptions::batch_invariant), into as many at most, by each sequence's own length.
struct KeySplits {
  KeySplits() = default;
  KeySplits(std::int32_t splits, bool invariant = false)  // NOLINT(google-explicit-constructor)
      : count(splits), batch_invariant(invariant) {}
  std::int32_t count = 1;
  bool batch_invariant = false;
  // Also one piece leaves its results apart, to be merged with those over keys of a shared prefix.
  bool keeps_parts = false;
  bool apart() const noexcept { return count > 1 || keeps_parts; }
};

// In order of preference; those that run by name only are the last.
std::span<const ForwardKernel> forward_kernels() noexcept;
// Null where there is none of that name.
const ForwardKernel* find_forward_kernel(std::string_view name) noexcept;

// The sequences of a packed Q that a kernel has, where they differ much in their numbers of
// queries: another kernel has the rest. 0: no bound.
struct OwnQueries {
  int least = 0, most = 0;
  bool uneven() const noexcept { return least > 0 || most > 0; }
};

// A kernel, its tile shape, and what else was chosen for the problem.
struct ForwardConfig {
  const ForwardKernel* kernel = nullptr;
  ForwardFeatures features{};
  Tiling tiling{};
  std::shared_ptr<const ForwardShape> shape{};
  Algorithm algorithm = Algorithm::flash_attention_2;

  bool splits = false;
  bool keeps_parts = false;  // KeySplits::keeps_parts
  int other_parts = 0;       // that combine merges too (device::OtherParts)
  CombineShape combine{};    // where keys are split
  // Splits past the end of a sequence are not merged: its own length says how many there are.
  bool by_length = false;
  // The kernel cuts keys as the lengths of all sequences suggest (device/schedule/pieces.cuh).
  bool fills_grid = false;
  OwnQueries queries{};
  // A kernel of its own classifies blocks of keys before (device/kernels/classify.cuh), since the
  // mask reads buffers.
  bool classified = false;
};

}  // namespace attn::cuda
