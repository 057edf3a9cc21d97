#include "cuda/kernels/forward_standard/kernel.hpp"

#include "cuda/kernels/forward_simt/kernel.hpp"
#include "cuda/kernels/forward_tiles.hpp"

namespace attn::cuda {
namespace {

class ForwardStandard final : public ForwardShape {
 public:
  void print(const ForwardConfig&, ConfigText&) const override {}
};

}  // namespace

ForwardChoice choose_forward_standard(const ForwardRequest& request) {
  constexpr int kGroup = 1;  // the papers know no GQA
  ForwardChoice choice{.tiling = forward_simt_tiling(request.problem, kGroup),
                       .shape = std::make_shared<ForwardStandard>()};
  choice.tiling.reason = "standard attention: S and P go through memory";
  return choice;
}

core::Size forward_standard_workspace(const Problem& p) {
  return all_rows(p) * p.seqlen_k * sizeof(float);
}

void place_forward_standard(device::ForwardParams& to, const Problem&, void* workspace) {
  to.scores = static_cast<float*>(workspace);
}

}  // namespace attn::cuda
