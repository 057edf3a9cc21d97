// The verbs that every CPU algorithm is written with, one table of them for each instruction set
// and operand type.
//
// A tile is a Q block (kRows rows, one a (query, head) pair) against a K, V block (up to kBlockK
// keys). Queries lie in SIMD lanes: S^T, P^T are [key][row], Q^T and O^T are [dim][row]. So the
// softmax is vertical (row maxima and sums are lanes, no shuffles), and K and V are read in their
// natural row order as broadcasts.
//
// "operand" is what the matrix products multiply: f32, or bf16 pairs along the summed dimension,
// accumulated in f32. The caller owns all memory; buffers are 64-byte aligned; rows = TileOps::rows
// everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attn/cache_type.hpp"
#include "attn/context.hpp"
#include "attn/matmul.hpp"
#include "attn/tensor.hpp"
#include "core/expr/program.hpp"
#include "cpu/append/verbs.hpp"
#include "cpu/f64/verbs.hpp"

namespace attn::cpu {

inline constexpr int kMaxRows = 32;  // of a Q block, over all instruction sets
// Keys of a K, V block: S^T is 8 KB, of two Q blocks half of a 32 KB L1.
inline constexpr int kBlockK = 64;
inline constexpr int kMaxRegisterBlocks = 2;  // Q blocks that the products take at once
inline constexpr int kMaxDecodeRows = 8;      // rows that the decoding verbs take at once
inline constexpr int kDecodeKeys = 8;         // keys, likewise
inline constexpr int kStagedKeys = 32;        // keys of V that products of bf16 take at once
// The scores of `count` rows with a key take so many floats: the next power of two.
constexpr int decode_row_stride(int count) {
  return count <= 1 ? 1 : count <= 2 ? 2 : count <= 4 ? 4 : kMaxDecodeRows;
}

// Leading dimension of packed rows in elements: a multiple of 16 floats keeps rows on cache lines.
constexpr int leading_dim(int dim) { return (dim + 15) / 16 * 16; }

// Rows of tensors lie heads * head_dim apart, so that the hardware foresees few of them. Loops over
// rows ask for the one this far on: 8 rows of 256 bytes are 32 lines, what a core keeps in flight
// (some 100 ns at 20 GB/s).
inline constexpr int kRowsAhead = 8;
static inline __attribute__((always_inline)) void prefetch_row(const std::byte* row,
                                                               std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i);
}

// One call of Philox a (row, 16 keys); see core/philox.hpp.
struct DropoutTile {
  std::uint64_t seed = 0, offset = 0;
  std::uint32_t threshold = 0;
  const std::int32_t* query = nullptr;        // [rows]
  const std::uint32_t* batch_head = nullptr;  // [rows] batch * heads_q + head
};

// The first `count` rows of a Q block and their weights.
struct WeightedRows {
  const void* t = nullptr;  // [key][rows] in the operand type
  const void* x = nullptr;  // [row][leading dimension], as pack_rows packs
  int count = 0;
};

// One Q block's share of S^T = K Q^T.
struct ScoreTile {
  const void* q_t = nullptr;  // [dim][rows]
  float* s = nullptr;         // [key][rows], written
  float* row_max = nullptr;   // [rows], written: the maximum over the keys; may be null
};
// One Q block's share of O^T = alpha O^T + V^T P^T.
struct OutputTile {
  const void* p = nullptr;       // [key][rows] in the operand type
  const float* alpha = nullptr;  // [rows]; null: 1
  float* o_t = nullptr;          // [dim][rows], read and written
};

// A part of A (lanes are rows) or B (lanes are columns) of a matrix product. Strides count
// elements; one of them is 1.
struct OperandBlock {
  const std::byte* at = nullptr;
  std::ptrdiff_t lane_stride = 0, step_stride = 0;  // step: along k
  int lanes = 0, depth = 0;                         // depth: steps
  DType dtype = DType::f32;
  // Of a B in blocks: a lane's steps are blocks of this format, the first of which begins at `at`;
  // its stride counts bytes, and 32 divides depth.
  BlockFormat format = BlockFormat::none;
};

// A part of C, and what its elements go through on their way there.
struct OutputBlock {
  std::byte* at = nullptr;
  std::ptrdiff_t row_bytes = 0;  // from one row to the next
  int rows = 0, columns = 0;
  DType dtype = DType::f32;
  // The bias of columns or of rows, one of them at most; null: none.
  const float* bias_of_columns = nullptr;  // [columns up to a multiple of 16]
  const float* bias_of_rows = nullptr;     // row_bias_stride apart
  std::ptrdiff_t row_bias_stride = 0;
  Activation activation = Activation::none;
};

// The verbs of matrix products (src/cpu/matmul).
struct ProductVerbs {
  int rows, columns;   // of a register tile of C
  int depth_multiple;  // depths of packed panels are rounded up to it, with zeros
  int element_bytes;   // of packed operands
  // A: ceil(lanes / rows) panels, B: ceil(lanes / columns), of rows (columns) * depth elements
  // each, zero where the block ends; up to a whole vector of lanes is written.
  void (*pack_a)(const OperandBlock& block, void* packed);
  void (*pack_b)(const OperandBlock& block, void* packed);
  // c[rows][columns] (rows ld apart) <- (add ? c : 0) + the product of two panels. Columns from
  // `wanted` on need not be computed.
  void (*multiply)(const void* a_panel, const void* b_panel, int depth, bool add, int wanted,
                   float* c, int ld);
  // C <- activation(sums + bias), rounded. sums: out.rows rows, ld apart, with columns up to a
  // multiple of 16; changed.
  void (*finish)(float* sums, int ld, const OutputBlock& out);
};

// The verbs of products of few rows, which read B where it lies; between enter() and leave().
struct FewRowsVerbs {
  int rows;            // of A, for which B is read once
  int row_multiple;    // packed A, and the sums, have rows up to it
  int depth_multiple;  // rows of packed A are as long as their depth rounded up to it
  int element_bytes;   // of packed A
  int packed_bytes;    // of packed A, at most: what the caches hold beside B
  // packed[lane][ld words of 4 bytes] <- A, zero up to ld. AMX has tiles instead, in the order that
  // the product with b takes.
  void (*pack_a)(const OperandBlock& a, const OperandBlock& b, int ld, void* packed);
  // c[rows][b.lanes] (rows ld apart) <- (add ? c : 0) + packed A times B; whole vectors are
  // written, up to 16 elements, and rows up to row_multiple.
  void (*multiply)(const void* packed, int a_ld, int rows, const OperandBlock& b, bool add,
                   float* c, int ld);
};

// Decoding with products of bf16: as decode_scores and decode_accumulate of TileOps, but Q is bf16
// and P is rounded to it, as K and V are where their numbers are others. Head sizes are multiples
// of kStagedKeys; a thread calls enter before, for so many rows, and leave after, where not null.
struct DecodeBf16Verbs {
  void (*enter)(int count);
  void (*leave)();
  // q <- rows of bf16, as scores takes them: at most [kMaxDecodeRows][leading_dim(dim)] elements.
  void (*pack_q)(const std::byte* const* row, int count, int dim, void* q);
  // The scores of kDecodeKeys keys are written, those from `keys` on with anything.
  void (*scores)(const void* q, int count, const std::byte* const* k, const std::byte* const* ahead,
                 int keys, int dim, CacheType source, float* s);
  // pairs [kDecodeKeys / 2][dim] of two keys each <- v, zero from `keys` <= kDecodeKeys on.
  void (*stage_values)(const std::byte* const* v, const std::byte* const* ahead, int keys, int dim,
                       CacheType source, void* pairs);
  // o[r][d] <- alpha[r] o[r][d] + sum_key p[key][r] v[key][d], keys <= kStagedKeys; pairs
  // [kStagedKeys / 2][dim].
  void (*accumulate)(const float* p, int count, const void* pairs, int keys, int dim,
                     const float* alpha, float* o);
};

// The verbs that differ with the operand type.
struct OperandVerbs {
  InstructionSet isa;
  DType operand;     // f32 or bf16
  int rows;          // of a Q block
  int dim_multiple;  // head sizes (of Q, K and of V) that the operands may have
  int q_blocks;      // Q blocks that scores and accumulate are best given, up to kMaxRegisterBlocks

  // A thread calls enter before and leave after the forward verbs of a task, where they are not
  // null (TileState does): AMX keeps a tile configuration a thread.
  void (*enter)();
  void (*leave)();

  // --- Packing. A null row pointer packs zeros. source: dtype of the rows. dim: elements of a row.
  // --- q_t [dim][rows] (bf16: [ceil(dim / 2)][rows] pairs) <- scale * row, each row times its own
  // scale too where `scales` is not null; bf16 operands take rows of bf16 with scale = 1 only.
  void (*pack_q)(const std::byte* const* row, int count, int dim, CacheType source,
                 const float* scales, float scale, void* q_t);
  // k [keys][leading_dim(dim)] (bf16: the same bytes halved) <- rows, each times its scale where
  // `scale` is not null. Rows of other types than the operand's are rounded to it.
  void (*pack_k)(const std::byte* const* row, int keys, int dim, CacheType source,
                 const float* scale, void* k);
  // v as k for f32; bf16: [ceil(keys / 2)][leading_dim(dim)] pairs of consecutive keys; AMX: V^T,
  // and both up to the end of a block of 32 keys.
  void (*pack_v)(const std::byte* const* row, int keys, int dim, CacheType source,
                 const float* scale, void* v);
  // x of WeightedRows, up to `rows` of them; bf16: pairs of rows, as words of P and dS hold them.
  void (*pack_rows)(const std::byte* const* row, int count, int dim, DType source, void* x);

  // Whether `floats` words (f32, or bf16 pairs) of what pack_v wrote hold no infinity and no NaN;
  // a multiple of 16.
  bool (*all_finite)(const void* packed, int floats);

  // --- Forward ---
  // s[key][row] <- sum_d k[key][d] q_t[d][row] for each of `tiles` Q blocks. An element's sum is
  // the same whatever is computed beside it.
  void (*scores)(const ScoreTile* tile, int tiles, const void* k, int keys, int dim);
  // Online softmax: m' = max(m, row_max), alpha = 2^(c (m - m')), p = 2^(c (s - m')), l <- alpha l
  // + sum p, m <- m'. c > 0. p takes the operand type ([keys][rows], bf16: [ceil(keys / 2)][rows]
  // pairs); f32 p may be s. keep: one bit a row for each key, or null; dropped elements of p are
  // zero, l keeps them. m starts at -FLT_MAX.
  void (*softmax)(float* s, int keys, float c, const float* row_max, const std::uint32_t* keep,
                  float* m, float* l, float* alpha, void* p);
  // o_t[d][row] <- alpha[row] o_t[d][row] + sum_key v[key][d] p[key][row] for each of `tiles` Q
  // blocks, with the same promise.
  void (*accumulate)(const OutputTile* tile, int tiles, const void* v, int keys, int dim);

  // --- Backward ---
  // p[key][row] <- e^(scale s - lse[row]), 0 where s is -inf whatever lse; s may be p. scale > 0.
  // Where P is rounded to bf16 it may be good to 3e-6 only.
  void (*probabilities)(const float* s, int keys, float scale, const float* lse, float* p);
  // P and dS, [key][rows], as the products take them: p_rows, ds_rows <- bf16 [key][rows] for
  // accumulate_rows, ds_pairs <- bf16 [ceil(keys / 2)][rows] pairs of keys for accumulate. Rows
  // from count on are zeros, and with AMX keys up to a multiple of 32, and lane i of both vectors
  // makes a pair of rows. Null for f32 operands, which are taken as they are.
  void (*round_gradients)(const float* p, const float* ds, int keys, int count, void* p_rows,
                          void* ds_rows, void* ds_pairs);
  // What probabilities, score_gradient without dropout and round_gradients leave in p_rows, ds_rows
  // and ds_pairs, in one pass, to the bit; s and dp may be changed. Null where there is none.
  void (*softmax_gradient)(float* s, float* dp, int keys, int count, float scale, const float* lse,
                           const float* delta, void* p_rows, void* ds_rows, void* ds_pairs);
  // g[key][ld] += sum_row t[key][row] x[row][ld] over the rows of `blocks` Q blocks, one after the
  // other; ld = leading_dim(dim). AMX changes g up to a multiple of 32 keys, where t is zero: by
  // nothing, if g is a number.
  void (*accumulate_rows)(const WeightedRows* block, int blocks, int keys, int dim, float* g);

  ProductVerbs product;  // between enter() and leave()
  FewRowsVerbs few_rows;
  DecodeBf16Verbs decode;  // null where there are none

  // Multiply-adds in registers for about `seconds`; returns flops done. For measure_peak_gflops.
  double (*peak_flops)(double seconds);
};

// A whole table. These verbs work on f32 whatever the operand type, so that tables of bf16 operands
// share them with the table of f32.
struct TileOps : OperandVerbs {
  // row[r][0, dim) <- o_t[dim][r] * factor[r], rounded to `target`; null rows are skipped.
  void (*unpack_o)(const float* o_t, int dim, const float* factor, DType target,
                   std::byte* const* row, int count);
  // Bit j: row[j][0, dim) holds an infinity or a NaN; count <= kBlockK, no row is null.
  std::uint64_t (*nonfinite_rows)(const std::byte* const* row, int count, int dim,
                                  CacheType source);
  // row[0, dim) <- factor * x[0, dim), rounded to `target`.
  void (*store_row)(const float* x, int dim, float factor, DType target, std::byte* row);

  // row_max[row] <- max over keys of s.
  void (*row_max)(const float* s, int keys, float* row_max);
  // keep[key - key0] bit row <- dropout keeps (row, key). key0 is a multiple of 32.
  void (*dropout_keep)(const DropoutTile& tile, int key0, int keys, std::uint32_t* keep);

  // --- Expressions over a tile; kernels/expression.hpp ---
  // s <- the expression of s; out <- the expression of s; s <- -inf where the boolean is false.
  void (*evaluate_score)(const expr::BoundProgram& program, const expr::TileContext& tile,
                         float* s);
  void (*evaluate)(const expr::BoundProgram& program, const expr::TileContext& tile, const float* s,
                   float* out);
  void (*apply_mask)(const expr::BoundProgram& program, const expr::TileContext& tile, float* s);

  // --- Backward ---
  // dot[r] <- sum_d x[r][d] y[r][d], read where they lie; no row is null.
  void (*dot_rows)(const std::byte* const* x, const std::byte* const* y, int count, int dim,
                   DType source, float* dot);
  // ds <- p (keep_scale keep dp - delta[row]), 0 where p is 0 whatever dp and delta; p <- keep p.
  // keep null: all kept and keep_scale 1.
  void (*score_gradient)(float* p, const float* dp, int keys, const std::uint32_t* keep,
                         float keep_scale, const float* delta, float* ds);
  // ds <- ds * factor, and 0 where ds is 0 (a masked element's factor may be infinite or NaN).
  void (*multiply_gradient)(const float* factor, int keys, float* ds);
  // sums <- ds times factor, 0 where ds is 0 as above, of the first `count` rows, added up where
  // `by` does not vary: one number, [rows], [keys] or [keys][rows]. factor null: 1. Lanes past
  // count hold anything, and take no part in sums over rows.
  void (*sum_gradient)(const float* ds, const float* factor, int keys, int count,
                       expr::Dependence by, double* sums);

  // --- Decoding: few rows, dims in lanes, K and V read where they lie. Scores are [key][stride],
  // --- stride = decode_row_stride(count).
  // s[key][r] <- sum_d q[r][d] k[key][d] for r < count, keys <= kDecodeKeys; q: f32
  // [count][leading_dim(dim)], zero past dim. ahead[key]: a row of the same size to prefetch
  // meanwhile, one a key so that loads and arithmetic overlap. Of the other scores of a key, those
  // of the next row may be written.
  void (*decode_scores)(const float* q, int count, const std::byte* const* k,
                        const std::byte* const* ahead, int keys, int dim, CacheType source,
                        float* s);
  // The same as softmax, for keys <= kBlockK: s <- P. m, l and alpha are [kMaxRows]: what belongs
  // to row r stands at r, r + stride, ... up to the end of a vector, in m and l before the call as
  // well. s may be written up to [kBlockK].
  void (*decode_softmax)(float* s, int count, int keys, float c, const std::uint32_t* keep,
                         float* m, float* l, float* alpha);
  // o[r][d] <- alpha[r] o[r][d] + sum_key p[key][r] v[key][d], keys <= kDecodeKeys; o: f32
  // [count][leading_dim(dim)].
  void (*decode_accumulate)(const float* p, int count, const std::byte* const* v,
                            const std::byte* const* ahead, int keys, int dim, CacheType source,
                            const float* alpha, float* o);

  VerbsF64 f64;  // of tables for f32 operands
  AppendVerb append;
};

// enter() and leave() of a task.
class TileState {
 public:
  explicit TileState(const TileOps& ops) : leave_(ops.leave) {
    if (ops.enter != nullptr) ops.enter();
  }
  ~TileState() {
    if (leave_ != nullptr) leave_();
  }
  TileState(const TileState&) = delete;
  TileState& operator=(const TileState&) = delete;

 private:
  void (*leave_)();
};

// Whether the backward pass can be written with the table.
inline bool has_backward(const TileOps& ops) {
  return ops.operand == DType::f32 || ops.round_gradients != nullptr;
}

// The table for an instruction set that is available; operand bf16 only for avx512_bf16, amx_bf16
// and neon_bf16.
const TileOps& tile_ops(InstructionSet isa, DType operand);

// Whether the instruction set multiplies bf16 operands; only_fast: and outruns its f32 FMA. AMD Zen
// 4 and 5 issue as many VDPBF16PS as FMA in a cycle, twice the flops; Intel Sapphire Rapids and
// later issue one VDPBF16PS every four FMA slots (measured: 125 against 250 GFLOP/s a core; AMX is
// its unit for bf16). BFDOT counts as fast, as it does twice the work of an FMLA: not measured.
bool has_bf16_products(InstructionSet isa, bool only_fast);
// `wanted`, or the best there is for automatic. Throws Error(unavailable).
InstructionSet best_instruction_set(InstructionSet wanted);

}  // namespace attn::cpu
