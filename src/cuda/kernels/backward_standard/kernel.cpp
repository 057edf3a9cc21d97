#include "cuda/kernels/backward_standard/kernel.hpp"

#include "cuda/kernels/backward_launches.hpp"
#include "cuda/kernels/backward_tiles.hpp"

namespace attn::cuda {
namespace {

using device::Gradient;

core::Size num_scores(const Problem& p) { return num_rows(p) * p.seqlen_k; }  // elements of P

}  // namespace

std::vector<Gradient> backward_standard_launches(const Problem&, const AskedGradients& asked) {
  constexpr bool kTogether = false;
  std::vector<Gradient> launches = launch_each(asked, kTogether);
  launches.insert(launches.begin(), Gradient::ds);
  return launches;
}

core::Size backward_standard_workspace(const Problem& p, const BackwardConfig&) {
  return num_scores(p) * (2 * sizeof(float));
}

void place_backward_standard(device::BackwardParams& to, const Problem& p, const BackwardConfig&,
                             std::byte* at) {
  to.probabilities = reinterpret_cast<float*>(at);
  to.ds = to.probabilities + num_scores(p).value();
}

}  // namespace attn::cuda
