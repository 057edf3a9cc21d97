#include "cuda/heuristics/forward_few_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "cuda/heuristics/shared_memory.hpp"

namespace attn::cuda {
namespace {

struct FewRowsShape {
  int head_dim;  // up to this, of the larger of Q K's and V's
  int rows;      // up to these, of a K, V head
  int warps, keys, stages;
  std::string_view reason;
};

// A multiprocessor of Hopper has to have some 32 KB on their way to read at full speed. Registers
// of a thread hold Q (head_dim / 4), O (head_dim_v / 2) and S (keys / 2), twice with 32 rows.
constexpr std::array kShapes{
    FewRowsShape{64, 16, 4, 16, 4, "four warps with keys of their own; 64 KB on their way"},
    FewRowsShape{64, 32, 4, 16, 4, "as with 16 rows, two products a key"},
    FewRowsShape{128, 16, 4, 16, 3, "four warps with keys of their own; 96 KB on their way"},
    FewRowsShape{256, 16, 4, 16, 3, "four warps with keys of their own; 192 KB on their way"},
};

std::int64_t rows_of(const Problem& p) { return p.seqlen_q * (p.heads_q / p.heads_k); }
std::int64_t widest(const Problem& p) { return std::max(p.head_dim, p.head_dim_v); }

const FewRowsShape* find_shape(const Problem& p) {
  const auto* const row = std::ranges::find_if(kShapes, [&](const FewRowsShape& s) {
    return widest(p) <= s.head_dim && rows_of(p) <= s.rows;
  });
  return row == kShapes.end() ? nullptr : row;
}

}  // namespace

std::string few_rows_obstacle(const Problem& p, Arch arch) {
  if (p.dropout.probability > 0) return "there is dropout; accepted is none";
  if (find_shape(p) == nullptr) {
    return fmt::format(
        "a K, V head of size {} has {} rows of Q (seqlen_q * heads_q / heads_k); accepted are up "
        "to 32 at head sizes up to 64, up to 16 at larger ones",
        widest(p), rows_of(p));
  }
  ForwardConfig config;
  config.kernel = ForwardKernel::few_rows;
  config.features.head_dim = static_cast<int>(p.head_dim);
  config.features.head_dim_v = static_cast<int>(p.head_dim_v);
  shape_few_rows(config, p);
  if (config.shared_bytes() > most_shared_bytes(arch)) {
    return fmt::format("its stages take {} bytes of shared memory; accepted by {} are at most {}",
                       config.shared_bytes(), to_string(arch), most_shared_bytes(arch));
  }
  return {};
}

void shape_few_rows(ForwardConfig& config, const Problem& p) {
  const FewRowsShape& shape = *find_shape(p);
  config.block_m = shape.rows;
  config.warps = shape.warps;
  config.block_n = shape.warps * shape.keys;
  config.stages = shape.stages;
  config.group = static_cast<int>(p.heads_q / p.heads_k);
  config.reason = shape.reason;
}

int few_rows_per_multiprocessor(const ForwardConfig& config) {
  constexpr std::int64_t kSharedBytes = 227 << 10, kReserved = 1 << 10;  // on 9.0; of a block
  constexpr int kMost = 4;  // by registers: 128 threads of at most 128 to 255
  return static_cast<int>(
      std::clamp<std::int64_t>(kSharedBytes / (config.shared_bytes() + kReserved), 1, kMost));
}

}  // namespace attn::cuda
