#include "cuda/kernels/backward_launches.hpp"

namespace attn::cuda {

using device::Gradient;

std::vector<Gradient> one_launch(const Problem&, const AskedGradients&) { return {Gradient::all}; }

std::vector<Gradient> launch_each(const AskedGradients& asked, bool together) {
  together = together && asked.dk && asked.dv;
  std::vector<Gradient> launches;
  if (asked.dq) launches.push_back(Gradient::dq);
  if (together) launches.push_back(Gradient::dk_dv);
  if (asked.dk && !together) launches.push_back(Gradient::dk);
  if (asked.dv && !together) launches.push_back(Gradient::dv);
  return launches;
}

}  // namespace attn::cuda
