// Infinities and NaN where P (or dS) is 0. A row must take nothing from a key that it does not see,
// whatever that key's V holds, but in a product 0 * NaN is NaN. So a product whose weights may hold
// such zeros runs over a block in which the rows of V (K, Q, dO) that are not finite are zeros, and
// what those rows add is added apart, where their weight is not 0. Example: keys 4 and 5 of a block
// hold NaN and a causal mask hides them from row 3. The block is packed with both as zeros, and
// then rows 5, 6, ... get P * NaN added, row 3 nothing.
//
// Where there is neither mask nor score expression, P is 0 where q.k is -inf, as of an infinite
// element of K. Forward, nobody looks for that ahead: a NaN or an infinity of V that such a P met
// is in O, so Q blocks whose O is not finite run once more, and then tiles with a score of -inf are
// among those above. Backward looks at Q, K and dO always, each of which it reads once or so.
#pragma once

#include <cstdint>

#include "cpu/attention.hpp"

namespace attn::cpu {

// Whether P of the tile may be 0 where V is used: the mask hides keys, or a score may be -inf.
inline bool may_hide(const Attention& a, expr::Coverage coverage) {
  return coverage == expr::Coverage::mixed || a.has_score();
}

// Whether O^T of the block holds no infinity and no NaN.
bool has_finite_output(const Attention& a, const QueryBlock& q);
// Whether q.k of some row of the block and some key is -inf. Overwrites t.s.
bool has_infinite_score(const Attention& a, const QueryBlock& q, const KeyBlock& block,
                        const TileScratch& t);

// Bit j: V of key first + j holds an infinity or a NaN, or its scale is one. count <= kBlockK.
std::uint64_t nonfinite_values(const Attention& a, const core::Sequence& sequence, int head_k,
                               int first, int count);

// Calls visit(j) for each bit j below `count`, in increasing order.
template <class Visit>
void for_each_bit(std::uint64_t bits, int count, const Visit& visit) {
  for (; bits != 0; bits &= bits - 1) {
    const int j = __builtin_ctzll(bits);
    if (j >= count) return;
    visit(j);
  }
}

// Bit j: row j of the block's V is not finite.
std::uint64_t values_to_set_apart(const Attention& a, const core::Sequence& sequence, int head_k,
                                  const KeyBlock& block);
// Packs V into `memory` without the rows of these bits, which becomes block.v.
void pack_values_without(const Attention& a, const core::Sequence& sequence, int head_k,
                         std::uint64_t apart, void* memory, KeyBlock& block);
// Both: returns the bits.
std::uint64_t set_apart_values(const Attention& a, const core::Sequence& sequence, int head_k,
                               void* memory, KeyBlock& block);
// What the values set apart add to the O^T of a tile: o_t[d][row] += p[key][row] v[key][d] where p
// is not 0. p of the first `keys` keys, in the operand type of a.ops.
void add_values_apart(const Attention& a, const core::Sequence& sequence, int head_k, int key0,
                      int keys, std::uint64_t apart, const OutputTile& tile);

// x[step][row] of an array in the operand type of a.ops: f32, or bf16 pairs of steps.
float operand_element(const Attention& a, const void* x, int step, int row);

// x_t[d][row] += weight[row] y[d] where the weight is not 0: one key of O^T = V^T P^T or of dQ^T =
// K^T dS^T. y: a row of this type, times scale.
void add_outer(const Attention& a, const float* weight, const std::byte* y, int dim, CacheType type,
               float scale, float* x_t);

}  // namespace attn::cpu
