// Rung 1: three loops. Each product loads both its operands, and those of B (row-major) lie a row
// of B apart: a cache line for one number. Measured: 1.0 GFLOP/s (here and in the rungs below: f32,
// 512 x 512 x 512, one core of a Zen 5, `attn matmul --rung all --threads 1 512,512,512`).
#include "core/tensor/element.hpp"
#include "cpu/matmul/matmul.hpp"

namespace attn::cpu {

void matmul_naive(const Product& p, const Workers& workers) {
  workers.parallel_for(p.batch * p.m, [&](std::int64_t index, int) {
    const std::int64_t batch = index / p.m, i = index % p.m;
    for (std::int64_t j = 0; j < p.n; ++j) {
      if (p.mask.of == core::BlockMaskView::Of::c && !p.mask.has(i, j)) continue;
      std::byte* const c = p.c.at(batch, i, j);
      float sum = p.accumulate ? static_cast<float>(core::load_element(c, p.c.dtype)) : 0;
      for (std::int64_t l = 0; l < p.k; ++l) {
        if (!p.mask.multiplies(i, l, j)) continue;
        sum += static_cast<float>(core::load_element(p.a.at(batch, i, l), p.a.dtype)) *
               static_cast<float>(core::load_element(p.b.at(batch, l, j), p.b.dtype));
      }
      core::store_element(c, p.c.dtype, core::activate(p.activation, sum + p.bias_at(i, j)));
    }
  });
}

}  // namespace attn::cpu
