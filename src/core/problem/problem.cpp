// The default of Problem::softmax_scale.
#include "attn/problem.hpp"

#include <cmath>

namespace attn {

double Problem::scale() const {
  return softmax_scale.value_or(1 / std::sqrt(static_cast<double>(head_dim)));
}

}  // namespace attn
