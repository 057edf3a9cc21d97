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
#include "cuda/codegen/printed_buffers.hpp"
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
//     // of key_first + step, as Expressions::score is.
//     float of_tanh(float tanh, int query, int key_first, ..., int step) const;
//   };
//
// in namespace attn::device. Values agree with expr::evaluate<float> (exp, exp2, log, tanh,
// erf, sin and cos within 2 ulp), and `form` says how the derivative of tanh is written. The text
// depends on what that of print_expressions depends on.
std::string print_slope(const expr::Expr& score, expr::TanhSlope form,
                        const PrintedBuffers& printed = {});
ExpressionPack slope_pack(const expr::Expr& score);  // the bytes of that struct
std::size_t slope_bytes(const expr::Expr& score);    // how many those are

}  // namespace attn::cuda
