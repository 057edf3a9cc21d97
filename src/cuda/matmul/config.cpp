#include "cuda/matmul/config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "attn/error.hpp"
#include "core/text/enum_names.hpp"

namespace attn::cuda {
namespace {

constexpr core::EnumName<MatmulRung> kRungs[] = {{MatmulRung::naive, "naive"},
                                                 {MatmulRung::coalesced, "coalesced"},
                                                 {MatmulRung::shared_tiles, "shared_tiles"},
                                                 {MatmulRung::register_tiles, "register_tiles"},
                                                 {MatmulRung::vector_loads, "vector_loads"},
                                                 {MatmulRung::mma_sync, "mma_sync"},
                                                 {MatmulRung::cp_async, "cp_async"},
                                                 {MatmulRung::ldmatrix, "ldmatrix"},
                                                 {MatmulRung::tma_wgmma, "tma_wgmma"},
                                                 {MatmulRung::warp_specialised, "warp_specialised"},
                                                 {MatmulRung::persistent, "persistent"},
                                                 {MatmulRung::split_k, "split_k"}};

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
         rung == MatmulRung::ldmatrix;
}

// Why the rung does not take the problem; empty when it does.
std::string obstacle(MatmulRung rung, const MatmulProblem& p, Arch arch, const MatmulTensors& t) {
  const bool tensor_cores = rung >= MatmulRung::mma_sync;
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

int divide_up(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

// Tiles of C: rows, columns, steps of k; each kernel's head comment says the same.
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
      return set(128, 128, 32, 4 * 2 * 128 * 32 * kHalf);
    case MatmulRung::tma_wgmma:
    case MatmulRung::warp_specialised:
    case MatmulRung::persistent:
    case MatmulRung::split_k:
      break;
  }
  c.groups = 2;
  c.stages = 4;
  const int columns = c.rung == MatmulRung::tma_wgmma ? 128 : 256;
  const int ring = c.stages * (128 + columns) * 64 * kHalf + 16 * c.stages;
  set(128, columns, 64, ring);
  if (c.rung != MatmulRung::tma_wgmma) c.threads = 384;
  if (c.stores_boxes) c.shared_bytes = (ring + 1023) / 1024 * 1024 + 4 * 64 * 64 * kHalf;
}

// Parts of k that fill the multiprocessors, of at least eight stages each.
int choose_splits(const MatmulProblem& p, const MatmulConfig& c, int sm_count) {
  const Shape shape(p);
  const std::int64_t tiles =
      p.batch * divide_up(shape.m, c.block_m) * divide_up(shape.n, c.block_n);
  constexpr std::int64_t kLeast = 512;
  const std::int64_t most = std::max<std::int64_t>(1, p.k / kLeast);
  return static_cast<int>(
      std::clamp<std::int64_t>(sm_count / std::max<std::int64_t>(1, tiles), 1, most));
}

}  // namespace

std::string_view name(MatmulRung rung) noexcept { return core::name_of(kRungs, rung); }

std::vector<std::string> cuda_matmul_rungs() {
  std::vector<std::string> names;
  for (const auto& row : kRungs) names.emplace_back(row.name);
  return names;
}

MatmulConfig choose_matmul(const MatmulProblem& p, Arch arch, std::string_view rung,
                           const MatmulTensors& tensors, int sm_count, bool or_slower) {
  const Shape shape(p);
  MatmulConfig c;
  c.dtype = p.dtype;
  c.output = p.output;
  c.steps_together_a = shape.a;
  c.steps_together_b = shape.b;
  if (p.bias) c.bias = p.order_c == MatrixOrder::row_major ? 1 : 2;
  c.activation = p.activation;
  c.rung = rung.empty() ? MatmulRung::split_k : core::parse_name(kRungs, "rung", rung);
  // The lowest rungs take everything.
  for (std::string why = obstacle(c.rung, p, arch, tensors); !why.empty();
       why = obstacle(c.rung, p, arch, tensors)) {
    if (!rung.empty() && !or_slower) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("rung {}: {} (problem {})", rung, why, to_string(p)));
    }
    c.rung = static_cast<MatmulRung>(static_cast<int>(c.rung) - 1);
  }
  set_tiles(c);
  if (c.rung == MatmulRung::split_k) {
    c.splits = choose_splits(p, c, sm_count);
    if (c.splits == 1 && rung.empty()) {
      c.rung = MatmulRung::persistent;
    }
  }
  if (c.rung == MatmulRung::persistent) {
    c.stores_boxes = p.output == p.dtype && tensors.aligned_c;
    set_tiles(c);
  }
  return c;
}

}  // namespace attn::cuda
