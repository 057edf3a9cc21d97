// What a backward kernel tells the library about itself, and what it is compiled for. Each has a
// folder beside this file, and a row in the table of backward_kernels.cpp; nothing else names it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/plan.hpp"
#include "attn/run.hpp"
#include "core/tensor/size.hpp"
#include "cuda/codegen/config_text.hpp"
#include "cuda/device/params.cuh"
#include "cuda/jit/compile.hpp"
#include "cuda/kernels/backward_features.hpp"
#include "cuda/kernels/backward_maps.hpp"

namespace attn::cuda {

struct BackwardConfig;

// A tile shape, as far as who launches the kernel needs it.
struct BackwardTiling {
  int block_m = 0;  // rows of the gradient of a thread block: of keys where it gives all three
  int block_n = 0;  // rows of the other side that they meet at a time
  int warps = 0;    // of a thread block
  int stages = 1;   // blocks of the other side in flight; of Q where rings differ
  int cluster = 1;  // thread blocks that share a tile
  std::int64_t shared_bytes = 0;  // dynamic: what the kernel's layout comes to, kBytes
  int l2_megabytes = 0;           // one pass: of the heads whose tiles are dealt together
  std::string_view reason{};
  int spill_bytes = 0;  // accepted: Source::allowed_spill_bytes

  int threads() const noexcept { return 32 * warps; }
};

// What was chosen for a problem that only the kernel itself knows of. Immutable.
class BackwardShape {
 public:
  BackwardShape() = default;
  BackwardShape(const BackwardShape&) = delete;
  BackwardShape& operator=(const BackwardShape&) = delete;
  virtual ~BackwardShape() = default;

  // Constants that the kernel reads beside those that every kernel has (backward/source.cpp).
  virtual void print(const BackwardConfig& config, ConfigText& to) const = 0;
  // Text that stands before the kernel's header, in namespace attn::device.
  virtual std::string declarations(const BackwardConfig&) const { return {}; }
};

// What a kernel is asked to choose a tile shape for.
struct BackwardRequest {
  const Problem& problem;
  Arch arch;
  const BackwardTensors& tensors;
  device::Gradient gradient;  // of a launch: one, two, or all three
  BackwardFeatures features;
  BufferFeatures buffers{};    // where the gradient is that of buffers
  bool deterministic = false;  // sums are to have a fixed order
  std::string_view parts{};    // of a tile shape, that the caller names ("q3_o3"), or empty
};

// Where obstacle is not empty the kernel does not take the problem, for that reason, and the rest
// is not set.
struct BackwardChoice {
  BackwardTiling tiling{};
  std::shared_ptr<const BackwardShape> shape{};  // null: the kernel has no constants of its own
  bool ordered = false;      // one pass: tiles add to dQ in a fixed order, asked for or faster
  bool skips_empty = false;  // block_sparse: tiles that the mask empties are left out
  std::string obstacle{};

  static BackwardChoice refused(std::string why) { return {.obstacle = std::move(why)}; }
};

// A row of the table.
struct BackwardKernel {
  // Of the kernel, its header in device/kernels/ and the function in that header.
  std::string_view name;
  // Kernels of another algorithm than this one run only where they or that are asked for by name.
  Algorithm algorithm = Algorithm::flash_attention_2;
  // Whether the kernel takes the problem, and with which tile shape. Throws Error(invalid_argument)
  // for parts that it does not have.
  BackwardChoice (*choose)(const BackwardRequest& request);
  // The launches that give what is asked for; null for a kernel that gives gradients of buffers
  // alone.
  std::vector<device::Gradient> (*launches)(const Problem& problem,
                                            const AskedGradients& asked) = nullptr;
  // How it goes over S, for people; {} is the number of launches.
  std::string_view passes{};
  // The tensor maps, of kernels that are given them; nothing where the driver does not take the
  // strides.
  std::optional<BackwardMaps> (*maps)(const BackwardConfig& config, const Problem& problem,
                                      const Inputs& inputs, const Tensor& d_o) = nullptr;
  // Bytes of what the kernel keeps in the workspace, behind what every kernel has there, and where
  // it finds them: from `at` on, a multiple of 128 bytes.
  core::Size (*workspace)(const Problem& problem, const BackwardConfig& config) = nullptr;
  void (*place)(device::BackwardParams& to, const Problem& problem, const BackwardConfig& config,
                std::byte* at) = nullptr;

  // Computes S once and adds dQ to memory, between kernels of its own (backward/one_pass.hpp).
  bool one_pass = false;
  // The one of these that says what queries see of tiles of keys, by the name of its header in
  // device/kernels/ and of the function in it; empty where none does.
  std::string_view query_words{};
  bool reads_row_terms = false;  // LSE and D of each row, from a kernel before (RowTerms)
  bool takes_parts = false;      // a name may go on with parts of a tile shape
  bool stays = false;            // one thread block a multiprocessor, which takes tile after tile
  bool tile_is_head = false;     // a thread block has a K, V head of a sequence
  // A thread block of Gradient::all has block_n query heads of one query and K, V head, and adds
  // to memory: the kernel's workspace is zeros before.
  bool takes_key_lists = false;
  bool scalar = false;  // computes in float32, without tensor cores
  // Gives gradients of buffers. `beside`: the kernel of dQ, dK and dV whose name asks for this one
  // too; where another is named, this one does not run.
  bool gives_buffers = false;
  std::string_view beside{};
  // Tiles with which each multiprocessor of an H100 has a thread block, or two where it holds them:
  // where there are fewer, sums of buffers are split.
  int full_tiles = 264;

  bool runs_by_name_only() const noexcept { return algorithm != Algorithm::flash_attention_2; }
};

// The part of a kernel's name that leaves out tiles which the mask empties (algorithm 5).
inline constexpr std::string_view kSkipsEmpty = "sparse";

// In order of preference; those that run by name only are the last.
std::span<const BackwardKernel> backward_kernels() noexcept;
// Null where there is none of that name.
const BackwardKernel* find_backward_kernel(std::string_view name) noexcept;

// A launch: a kernel, what it computes, its tile shape, and what else was chosen for the problem.
struct BackwardConfig {
  const BackwardKernel* kernel = nullptr;
  device::Gradient gradient = device::Gradient::dq;
  BackwardFeatures features{};
  BufferFeatures buffers{};
  BackwardTiling tiling{};
  std::shared_ptr<const BackwardShape> shape{};
  Algorithm algorithm = Algorithm::flash_attention_2;
  bool ordered = false;  // BackwardChoice::ordered
};

}  // namespace attn::cuda
