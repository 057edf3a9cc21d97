// What the tests share that change some inputs and want other results to keep their bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "attn/run.hpp"
#include "core/problem/rows.hpp"
#include "verify/data.hpp"

namespace attn::verify {

struct Algorithms {
  Algorithm forward, backward;
  InstructionSet isa;
};

inline std::string describe(const Algorithms& a) {
  return std::string(name(a.forward)) + ", " + std::string(name(a.backward)) + ", " +
         std::string(name(a.isa));
}

// Outputs are poisoned first. Two threads.
inline void run(CaseData& data, const Algorithms& a) {
  const Context context{.executor = make_thread_pool(2), .isa = a.isa, .log = nullptr};
  data.poison();
  forward(data.problem, data.inputs, data.outputs,
          {.backend = Backend::cpu, .algorithm = a.forward}, context);
  if (data.problem.layout_k == Layout::paged) return;
  backward(data.problem, data.inputs, data.outputs, data.d_o, data.gradients,
           {.backend = Backend::cpu, .algorithm = a.backward}, context);
}

// Row i of head h has the same bits in both.
inline bool same_row(const core::Rows& a, const core::Rows& b, std::int64_t i, std::int64_t h,
                     const Tensor& tensor, std::int64_t dim) {
  return std::memcmp(a.row(i, h), b.row(i, h),
                     static_cast<std::size_t>(dim) * size_of(tensor.dtype)) == 0;
}

// Whether LSE of (batch, head, i) has the same bits in both.
inline bool same_lse(const CaseData& a, const CaseData& b, std::int64_t batch, std::int64_t head,
                     std::int64_t i) {
  const core::LseRow x = core::lse_row(a.problem, a.inputs, a.outputs.lse, batch, head);
  const core::LseRow y = core::lse_row(b.problem, b.inputs, b.outputs.lse, batch, head);
  return std::memcmp(x.base + i * x.stride, y.base + i * y.stride, size_of(a.outputs.lse.dtype)) ==
         0;
}

}  // namespace attn::verify
