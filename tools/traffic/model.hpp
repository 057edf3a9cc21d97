// How many bytes the papers' algorithms move between slow and fast memory, in closed form: every
// term is a line of the published algorithm that loads or stores. docs/io.md derives them.
#pragma once

#include "attn/plan.hpp"
#include "traffic/tiles.hpp"
#include "traffic/traffic.hpp"

namespace attn::traffic {

// Whether model() and walk() know the algorithm: standard, flash_attention, flash_attention_2 and
// block_sparse, each forward and backward.
bool is_modelled(Algorithm algorithm);

// Elements a head, all lengths N, no mask:
//                     forward                                  backward
//   standard          4 N d + 4 N^2                            8 N d + 7 N^2
//   flash_attention   3 N d + 2 N + T_c (3 N d + 4 N)          7 N d + T_c (5 N d + 2 N)
//   flash_attention_2 2 N d + N + T_r 2 N d                    7 N d + N + T_c (4 N d + 2 N)
// with T_r = ceil(N / B_r) and T_c = ceil(N / B_c). block_sparse is flash_attention over the tiles
// that its mask leaves; flash_attention_2 skips empty tiles likewise. K and V are loaded by every
// query head alone, as in the papers, which know no GQA. Throws Error(unsupported) for other
// algorithms.
Traffic model(const Problem& problem, Phase phase, Algorithm algorithm, const Blocks& blocks);

// Throws Error(unsupported) where the problem has lists of keys, as all counts do: which rows the
// lists name is not known.
void refuse_key_lists(const Problem& problem);

// Inputs and outputs moved once, K and V once a K, V head: what any algorithm moves at least.
Traffic compulsory(const Problem& problem, Phase phase);

// Operations of the matrix products, over the tiles visited: 2 products forward; backward 4 in
// standard attention, which keeps P, and 5 elsewhere.
double model_flops(const Problem& problem, Phase phase, Algorithm algorithm, const Blocks& blocks);

}  // namespace attn::traffic
