// Derivatives of a score expression as device code, for the backward pass.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attn/expr.hpp"
#include "core/expr/build.hpp"
#include "cuda/codegen/expression_pack.hpp"
#include "cuda/device/params.cuh"

namespace attn::cuda {

// The text of
//
//   struct alignas(8) Slope {  // trivially copyable: a kernel parameter
//     static constexpr bool kHasSlope;  // false: dT/dS is 1
//     // dT/dS of the score T at S, which is softmax_scale * q.k.
//     float slope(float dot, int query, int key, int batch, int head, int seqlen_q,
//                 int seqlen_k) const;
//     // Whether T rises with one tanh(kTanhMultiple * S) and reads S nowhere else.
//     static constexpr bool kIsOfTanh;
//     // Then: T is kTanhFactor times of_tanh of that tanh, and dT/dS is kTanhSlope (1 - tanh^2).
//     static constexpr float kTanhMultiple, kTanhFactor, kTanhSlope;
//     static constexpr bool kIsBounded;  // |T| is at most 128, as with softcap(30)
//     float of_tanh(float tanh, int query, ...) const;
//   };
//
// in namespace attn::device. Values agree with expr::evaluate<float> (exp, exp2, log, tanh and
// erf within 2 ulp), and `form` says how the derivative of tanh is written. The text depends on
// what that of print_expressions depends on.
std::string print_slope(const expr::Expr& score, expr::TanhSlope form,
                        const expr::Bindings& bindings = {});
ExpressionPack slope_pack(const expr::Expr& score);  // the bytes of that struct
std::size_t slope_bytes(const expr::Expr& score);    // how many those are

// The text of
//
//   struct alignas(8) BufferGradients {
//     // Places where the score reads a buffer that has a gradient; 1 where there are none.
//     static constexpr int kLoads;
//     // Adds dT times the derivative of T with respect to the element that is read, to its sum.
//     // dot, ..., seqlen_k: as of Slope::slope.
//     void add(PendingSum (&sums)[kLoads], float d_t, float dot, ...) const;
//     // What is still pending.
//     void flush(PendingSum (&sums)[kLoads]) const;
//   };
//
// (src/cuda/device/expr/buffer_gradient.cuh) for the gradients of buffers `names`.
std::string print_buffer_gradients(const expr::Expr& score, const std::vector<std::string>& names,
                                   expr::TanhSlope form, const expr::Bindings& bindings = {});
// The bytes of that struct. As ExpressionPack, and with sums: of each name, in their order.
class BufferGradientsPack {
 public:
  BufferGradientsPack(const expr::Expr& score, const std::vector<std::string>& names);
  std::size_t size() const noexcept;
  void pack(std::span<double* const> sums, const expr::Bindings& bindings, std::byte* to) const;

 private:
  struct Place {  // where the score reads a buffer that has a gradient
    std::size_t name;
    std::shared_ptr<const expr::Buffer> buffer;
  };
  ExpressionPack views_;
  std::vector<Place> places_;
};
std::size_t buffer_gradients_bytes(const expr::Expr& score, const std::vector<std::string>& names);

}  // namespace attn::cuda
