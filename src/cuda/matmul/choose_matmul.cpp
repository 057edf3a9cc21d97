#include "cuda/matmul/choose_matmul.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "attn/error.hpp"
#include "cuda/matmul/matmul_sm80.hpp"
#include "cuda/matmul/matmul_sm90.hpp"

namespace attn::cuda {
namespace {

// m and n as kernels have them, and how their operands lie.
struct Shape {
  explicit Shape(const MatmulProblem& p) : m(p.m), n(p.n) {
    a = p.order_a == MatrixOrder::row_major;
    b = p.order_b == MatrixOrder::column_major;
    if (p.order_c == MatrixOrder::row_major) return;
    std::swap(m, n);
    std::swap(a, b);
  }
  std::int64_t m, n;
  bool a = false, b = false;  // neighbours along k lie together
};

bool on_hopper(MatmulRung rung) { return rung >= MatmulRung::tma_wgmma; }
bool by_vectors(MatmulRung rung) {
  return rung == MatmulRung::vector_loads || rung == MatmulRung::cp_async ||
         rung == MatmulRung::ldmatrix || rung == MatmulRung::pipelined;
}

// The matrix that has a mask, once C is row-major: 1: A, 2: B, 3: C.
int masked_of(const MatmulProblem& p) {
  switch (p.masked) {
    case MaskedMatrix::none:
      return 0;
    case MaskedMatrix::b:
      return p.order_c == MatrixOrder::row_major ? 2 : 1;
    case MaskedMatrix::c:
      return 3;
  }
  return 0;
}

// Tiles of C and of k that a rung has, of the table the smallest. {}: an element a thread.
struct Tile {
  int m = 1, n = 1, k = 1;
};
Tile smallest_tile(MatmulRung rung, const MatmulProblem& p);

// Why a rung does not take a mask: a tile may not lie in two of its blocks.
std::string mask_obstacle(MatmulRung rung, const MatmulProblem& p) {
  constexpr std::array kTake{MatmulRung::naive,
                             MatmulRung::coalesced,
                             MatmulRung::vector_loads,
                             MatmulRung::cp_async,
                             MatmulRung::ldmatrix,
                             MatmulRung::pipelined,
                             MatmulRung::warp_specialised,
                             MatmulRung::persistent};
  if (std::find(kTake.begin(), kTake.end(), rung) == kTake.end()) {
    std::vector<std::string_view> names;
    for (const MatmulRung take : kTake) names.push_back(name(take));
    return fmt::format("masked is {}; the rungs that take a mask are {}", name(p.masked),
                       fmt::join(names, ", "));
  }
  const int masked = masked_of(p);
  const Tile tile = smallest_tile(rung, p);
  const int multiple = std::lcm(masked == 1 ? tile.m : tile.n, masked == 3 ? tile.m : tile.k);
  if (p.block % multiple == 0) return {};
  return fmt::format("block is {}; accepted are multiples of {}", p.block, multiple);
}

// Why the rung does not take the problem; empty when it does.
std::string obstacle(MatmulRung rung, const MatmulProblem& p, Arch arch, const MatmulTensors& t) {
  const bool tensor_cores = rung >= MatmulRung::mma_sync;
  const bool float8 = p.float8 != Float8::none;
  if (float8 && rung >= MatmulRung::vector_loads && rung < MatmulRung::warp_specialised) {
    return fmt::format("A and B are {}; accepted are 16-bit types", name(p.float8));
  }
  if (float8 && on_hopper(rung) && !(Shape(p).a && Shape(p).b)) {
    return "A or B is not contiguous along k; accepted of 8-bit floats are a row-major A and a "
           "column-major B, or both and C the other way";
  }
  if (p.masked != MaskedMatrix::none) {
    const std::string why = mask_obstacle(rung, p);
    if (!why.empty()) return why;
  }
  if (tensor_cores && p.dtype == DType::f32) {
    return "dtype is f32; accepted are bf16 and f16, which tensor cores multiply";
  }
  if (tensor_cores && arch.number < 80) {
    return fmt::format("the architecture is {}; accepted are sm_80 and up", to_string(arch));
  }
  if (on_hopper(rung) && (arch.number != 90 || !arch.accelerated)) {
    return fmt::format("the architecture is {}; accepted is sm_90a", to_string(arch));
  }
  if ((by_vectors(rung) || on_hopper(rung)) && !t.aligned) {
    return "A or B is not aligned to 16 bytes; accepted are addresses and strides that are";
  }
  if ((by_vectors(rung) || on_hopper(rung)) && p.k == 0) return "k is 0; accepted are 1 and up";
  if (by_vectors(rung)) {
    const Shape shape(p);
    const auto width = static_cast<std::int64_t>(16 / size_of(p.dtype));
    const std::int64_t a = shape.a ? p.k : shape.m, b = shape.b ? p.k : shape.n;
    if (a % width != 0 || b % width != 0) {
      return fmt::format(
          "rows (columns, of column_major) of A and B have {} and {} elements; "
          "accepted are multiples of {}",
          a, b, width);
    }
  }
  return {};
}

// Tiles of C of the rungs without a table: rows, columns, steps of k; each kernel's head comment
// says the same.
void set_tiles(MatmulConfig& c) {
  const auto set = [&](int m, int n, int k, int shared_bytes) {
    c.block_m = m;
    c.block_n = n;
    c.block_k = k;
    c.shared_bytes = shared_bytes;
  };
  constexpr int kFloat = 4, kHalf = 2;
  switch (c.rung) {
    case MatmulRung::naive:
      return set(32, 8, 1, 0);
    case MatmulRung::coalesced:
      return set(8, 32, 1, 0);
    case MatmulRung::shared_tiles:
      return set(32, 32, 32, 2 * 32 * 33 * kFloat);
    case MatmulRung::register_tiles:
    case MatmulRung::vector_loads:
      return set(128, 128, 16, 2 * 16 * 132 * kFloat);
    case MatmulRung::mma_sync:
      return set(128, 128, 32, 2 * 128 * 40 * kHalf);
    case MatmulRung::cp_async:
    case MatmulRung::ldmatrix:
      // Two blocks of ldmatrix share a multiprocessor, so that one multiplies while the other
      // waits; cp_async would spill.
      c.blocks = c.rung == MatmulRung::ldmatrix ? 2 : 1;
      return set(128, 128, 32, 4 * 2 * 128 * 32 * kHalf);
    case MatmulRung::pipelined:
    case MatmulRung::tma_wgmma:
    case MatmulRung::warp_specialised:
    case MatmulRung::persistent:
    case MatmulRung::cluster_multicast:
    case MatmulRung::split_k:
    case MatmulRung::stream_k:
      break;
  }
}

bool in_table(MatmulRung rung) {
  return rung == MatmulRung::pipelined || rung >= MatmulRung::persistent;
}

Tile smallest_tile(MatmulRung rung, const MatmulProblem& p) {
  const int depth = static_cast<int>(128 / size_of(p.dtype));
  if (rung == MatmulRung::pipelined) return {64, 64, 32};
  if (in_table(rung)) return {64, 64, depth};
  if (on_hopper(rung)) return {128, p.float8 == Float8::none ? 256 : 128, depth};
  if (rung == MatmulRung::naive || rung == MatmulRung::coalesced) return {};
  MatmulConfig c;
  c.rung = rung;
  set_tiles(c);
  return {c.block_m, c.block_n, c.block_k};
}

// Shared memory behind the ring: panels of C on their way out, sums of other blocks.
int shared_beside_ring(const MatmulConfig& c) {
  constexpr int kPanelBytes = 64 * 128, kFloat = 4;
  if (c.stores_boxes) return 1024 + c.groups * 2 * kPanelBytes;
  if (c.splits == 1) return 0;
  return 128 + (c.splits - 1) * c.block_m * c.block_n / c.splits * kFloat;
}

// Sets the ring of the rungs with wgmma: as many stages as fit, up to eight.
void set_ring(MatmulConfig& c, const MatmulShape& shape) {
  constexpr int kRow = 128, kBarriers = 16, kMost = 232448, kMostStages = 8;
  c.block_m = shape.rows;
  c.block_n = shape.columns;
  c.block_k = kRow / static_cast<int>(size_of(c.dtype));
  c.splits = shape.splits;
  c.multicast = c.rung == MatmulRung::cluster_multicast ? 2 : 1;
  c.groups = c.block_m / 64;
  c.threads = 128 * (c.groups + (c.rung == MatmulRung::tma_wgmma ? 0 : 1));
  // Columns that are neighbours in memory come in whole panels.
  const int columns = c.steps_together_b ? c.block_n : (c.block_n + 63) / 64 * 64;
  const int stage = (c.block_m + columns) * kRow + kBarriers, beside = shared_beside_ring(c);
  c.stages = in_table(c.rung) ? std::min(kMostStages, (kMost - beside) / stage) : 4;
  c.shared_bytes = c.stages * stage + beside;
}

// Sets what `pipelined` is compiled for; shape is complete.
void set_pipelined(MatmulConfig& c, const MatmulShape& shape, Arch arch) {
  constexpr int kLane = 32;
  c.block_m = shape.rows;
  c.block_n = shape.columns;
  c.block_k = shape.depth;
  c.stages = shape.stages;
  c.threads = kLane * shape.warps;
  c.warps_down = warps_down_of(shape);
  c.blocks = blocks_of(shape, arch);
  c.shared_bytes = static_cast<int>(ring_bytes_of(shape));
}

// Why there is no such tile; empty where there is.
std::string refuse_shape(MatmulRung rung, const MatmulShape& s, Arch arch) {
  if (rung == MatmulRung::pipelined) {
    return refuse_matmul_sm80(complete_matmul_sm80(s, arch), arch);
  }
  const bool splits = rung == MatmulRung::split_k;
  const int multiple = rung == MatmulRung::cluster_multicast ? 128
                       : rung == MatmulRung::persistent      ? 16
                                                             : 64;
  const bool wide = rung == MatmulRung::persistent && s.rows == 128 && s.columns == 320;
  const bool fits = (s.rows == 64 || s.rows == 128) && s.columns >= 64 &&
                    (s.columns <= kMostWgmmaColumns || wide) && s.columns % multiple == 0 &&
                    s.splits >= (splits ? 2 : 1) && s.splits <= (splits ? 8 : 1) &&
                    s.columns / 8 % s.splits == 0 && s.warps == 0 && s.depth == 0 && s.stages == 0;
  if (fits && in_table(rung)) return {};
  return fmt::format(
      "shape {}x{}_s{} of rung {}; accepted from persistent on are 64 or 128 rows, 64, 128, 192 or "
      "256 columns (of persistent multiples of 16 between, and 128x320), and of split_k 2 to 8 "
      "parts that "
      "divide the columns in multiples of 8",
      s.rows, s.columns, s.splits, name(rung));
}

}  // namespace

MatmulConfig choose_matmul(const MatmulProblem& p, Arch arch, const MatmulRequest& request,
                           const MatmulTensors& tensors, int sm_count, bool or_slower) {
  const std::string_view rung = request.rung;
  const Shape shape(p);
  MatmulConfig c;
  c.dtype = p.dtype;
  c.output = p.output;
  c.float8 = p.float8;
  c.scaled = p.scaled;
  c.steps_together_a = shape.a;
  c.steps_together_b = shape.b;
  if (p.bias) c.bias = p.order_c == MatrixOrder::row_major ? 1 : 2;
  c.masked = masked_of(p);
  if (c.masked != 0) c.block = static_cast<int>(p.block);
  c.activation = p.activation;
  c.aligned_c = tensors.aligned_c;
  c.rung = rung.empty() ? MatmulRung::stream_k : parse_matmul_rung(rung);
  if (request.shape.rows > 0 && (in_table(c.rung) || !or_slower)) {
    const std::string why = refuse_shape(c.rung, request.shape, arch);
    if (!why.empty()) throw Error(ErrorCode::unsupported, why);
  }
  const MatmulRung asked = c.rung;
  // The lowest rungs take everything.
  for (std::string why = obstacle(c.rung, p, arch, tensors); !why.empty();
       why = obstacle(c.rung, p, arch, tensors)) {
    if (!rung.empty() && !or_slower) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("rung {}: {} (problem {})", rung, why, to_string(p)));
    }
    c.rung = static_cast<MatmulRung>(static_cast<int>(c.rung) - 1);
  }
  if (c.rung != MatmulRung::pipelined && !on_hopper(c.rung)) {
    set_tiles(c);
    return c;
  }
  const bool float8 = p.float8 != Float8::none;
  MatmulShape tile{128, c.rung == MatmulRung::tma_wgmma || float8 ? 128 : 256, 1};
  MatmulTileLimits limits;
  if (float8) limits.most_columns = 192;
  if (c.masked == 1 || c.masked == 3) limits.of_rows = c.block;
  if (c.masked == 2 || c.masked == 3) limits.of_columns = c.block;
  const bool named = c.rung == asked && in_table(asked) && request.shape.rows > 0;
  const MatmulSizes sizes{p.batch,
                          shape.m,
                          shape.n,
                          p.k,
                          static_cast<std::int64_t>(128 / size_of(p.dtype)),
                          !c.steps_together_b};
  if (c.rung == MatmulRung::pipelined) {
    if (!named) {
      const MatmulSm80Shape& row = choose_matmul_sm80(sizes, arch, sm_count, limits);
      tile = row.shape;
      c.reason = row.reason;
    }
  } else if (in_table(c.rung)) {
    const bool any = rung.empty() && c.masked == 0;
    const MatmulSm90Shape& row = choose_matmul_sm90(sizes, c.rung, any, sm_count, limits);
    c.rung = row.rung;
    tile = row.shape;
    c.reason = row.reason;
  }
  if (named) {
    tile = request.shape;
    if (!limits.take(tile)) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("rung {}: tiles of {} x {} do not divide blocks of {} (problem {})",
                              rung, tile.rows, tile.columns, c.block, to_string(p)));
    }
  }
  if (c.rung == MatmulRung::pipelined) {
    set_pipelined(c, complete_matmul_sm80(tile, arch), arch);
    return c;
  }
  c.stores_boxes = in_table(c.rung) && c.rung != MatmulRung::split_k && size_of(p.output) == 2 &&
                   tensors.aligned_c;
  set_ring(c, tile);
  return c;
}

}  // namespace attn::cuda
