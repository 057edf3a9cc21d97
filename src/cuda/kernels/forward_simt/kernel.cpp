#include "cuda/kernels/forward_simt/kernel.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/kernels/forward_tiles.hpp"
#include "cuda/kernels/shared_memory.hpp"

namespace attn::cuda {
namespace {

constexpr int kThreads = 128, kKeys = 64;
constexpr std::int64_t kPiece = 64;  // columns of K or V at a time

int rows_of_tile(const Problem& p) { return std::max(p.head_dim, p.head_dim_v) > 128 ? 32 : 64; }

class ForwardSimt final : public ForwardShape {
 public:
  void print(const ForwardConfig&, ConfigText&) const override {}
};

}  // namespace

Tiling forward_simt_tiling(const Problem& p, int group) {
  Tiling t;
  t.rows = rows_of_tile(p);
  t.keys = kKeys;
  t.threads = kThreads;
  t.parts = kThreads / 32;
  t.group = group;
  const std::int64_t rows = t.rows + kForwardSimtPad, slots = t.keys + kForwardSimtPad;
  t.shared_bytes = 4 * (p.head_dim * rows + t.keys * rows + kPiece * slots);
  t.reason = "float32 arithmetic without tensor cores";
  return t;
}

ForwardChoice choose_forward_simt(const ForwardRequest& request) {
  const Problem& p = request.problem;
  const int rows = rows_of_tile(p);
  const int group = p.key_list > 0 ? static_cast<int>(p.heads_q / p.heads_k)
                                   : packed_group(p, rows, rows, request.tensors.uneven_q);
  const Tiling tiling = forward_simt_tiling(p, group);
  const std::int64_t most = most_shared_bytes(request.arch);
  if (tiling.shared_bytes > most) {
    return ForwardChoice::refused(
        fmt::format("head_dim is {}, whose tiles take {} bytes of shared memory; {} has {}",
                    p.head_dim, tiling.shared_bytes, to_string(request.arch), most));
  }
  return {.tiling = tiling, .shape = std::make_shared<ForwardSimt>()};
}

}  // namespace attn::cuda
