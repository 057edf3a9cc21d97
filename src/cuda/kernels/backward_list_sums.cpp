#include "cuda/kernels/backward_list_sums.hpp"

#include "core/ceil_div.hpp"

namespace attn::cuda {
namespace {

using device::Gradient;

// Of one gradient: rows of whole blocks of 16 columns.
core::Size sums_bytes(const Problem& p, std::int64_t columns) {
  return core::Size(p.batch) * p.heads_k * p.seqlen_k *
         (core::ceil_div(columns, std::int64_t{16}) * 16 * std::int64_t{sizeof(float)});
}

}  // namespace

std::vector<Gradient> list_launches(const Problem&, const AskedGradients& asked) {
  if (!asked.dk && !asked.dv) return {Gradient::all};
  return {Gradient::all, Gradient::dk_dv};
}

core::Size list_sums_workspace(const Problem& p, const BackwardConfig&) {
  return sums_bytes(p, p.head_dim) + sums_bytes(p, p.head_dim_v);
}

void place_list_sums(device::BackwardParams& to, const Problem& p, const BackwardConfig&,
                     std::byte* at) {
  to.dk_sum = reinterpret_cast<float*>(at);
  to.dv_sum = reinterpret_cast<float*>(at + sums_bytes(p, p.head_dim).value());
}

}  // namespace attn::cuda
