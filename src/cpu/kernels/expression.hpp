// Mask and score expressions over a tile S^T [keys][rows].
//
// A program (core/expr/program.hpp) runs instruction by instruction, each over many vectors: first
// what does not depend on both row and key (once a tile: one vector, the rows, or the keys), then,
// for strips of keys whose temporaries stay in L1, the rest.
#pragma once

#include "cpu/kernels/expression_load.hpp"
#include "cpu/kernels/expression_ops.hpp"

namespace attn::cpu::ATTN_ISA {

static_assert(kRows <= expr::kMaxTileRows && kLanes <= expr::kMaxLanes);

// A program on its way through one tile.
struct Evaluation {
  const expr::BoundProgram& program;
  const expr::TileContext& tile;
  int strip = 0;                 // first key of the strip, from the tile's
  const float* score = nullptr;  // of the strip

  float* result(const expr::Instruction& in) const { return tile.scratch + in.offset; }
};

// What a value is for an instruction that does not depend on both row and key.
ATTN_INLINE Operand flat_operand(const Evaluation& e, int index) {
  const expr::Instruction& in = e.program.instructions[index];
  const bool uniform = in.dependence == expr::Dependence::uniform;
  return {e.result(in), 0, uniform ? 0 : kLanes};
}

// What a value is for a full instruction.
ATTN_INLINE Operand strip_operand(const Evaluation& e, int index) {
  const expr::Instruction& in = e.program.instructions[index];
  switch (in.dependence) {
    case expr::Dependence::uniform:
      return {e.result(in), 0, 0};
    case expr::Dependence::row:
      return {e.result(in), 0, kLanes};
    case expr::Dependence::key:
      return {e.tile.scratch + in.extra_offset, kLanes, 0};
    case expr::Dependence::full:
      break;
  }
  return {in.op == expr::Op::score ? e.score : e.result(in), e.tile.rows, kLanes};
}

ATTN_INLINE void fill(float* out, int vectors, I value) {
  for (int v = 0; v < vectors; ++v) store(out + v * kLanes, bit_cast<F>(value));
}
ATTN_INLINE void copy_rows(float* out, int rows, const std::int32_t* values) {
  for (int r = 0; r < rows; r += kLanes) store(out + r, bit_cast<F>(load(values + r)));
}

// Constants and symbols. False for everything else.
static bool fill_leaf(const Evaluation& e, const expr::Instruction& in, float* out) {
  const expr::TileContext& t = e.tile;
  switch (in.op) {
    case expr::Op::constant:
      fill(out, 1,
           in.type == expr::Type::float32 ? bit_cast<I>(set1(in.float_value))
           : in.type == expr::Type::int32 ? set1(in.int_value)
                                          : set1(-in.int_value));
      return true;
    case expr::Op::query:
      copy_rows(out, t.rows, t.query);
      return true;
    case expr::Op::head:
      copy_rows(out, t.rows, t.head);
      return true;
    case expr::Op::key:
      for (int j = 0; j < kLanes * ((t.keys + kLanes - 1) / kLanes); ++j) {
        put_bits(out + j, static_cast<std::uint32_t>(t.key0) + static_cast<std::uint32_t>(j));
      }
      return true;
    case expr::Op::batch:
      fill(out, 1, set1(t.batch));
      return true;
    case expr::Op::seqlen_q:
      fill(out, 1, set1(t.seqlen_q));
      return true;
    case expr::Op::seqlen_k:
      fill(out, 1, set1(t.seqlen_k));
      return true;
    case expr::Op::load:  // a scalar
      if (in.num_args > 0) return false;
      fill(out, 1, set1(int_at(static_cast<const float*>(e.program.buffers[in.buffer].data))));
      return true;
    default:
      return false;
  }
}

// Everything that does not depend on both row and key.
static void run_flat(const Evaluation& e) {
  for (int i = 0; i < e.program.first_full; ++i) {
    const expr::Instruction& in = e.program.instructions[i];
    float* out = e.result(in);
    Grid grid;
    if (in.dependence == expr::Dependence::row) grid.vectors = e.tile.rows / kLanes;
    if (in.dependence == expr::Dependence::key) {
      grid.vectors = (e.tile.keys + kLanes - 1) / kLanes;
    }
    if (fill_leaf(e, in, out)) continue;
    Operand args[kMaxRank];
    for (int a = 0; a < in.num_args; ++a) args[a] = flat_operand(e, in.args[a]);
    if (in.op == expr::Op::load) {
      load_elements(e.program.buffers[in.buffer], args, grid, out);
    } else {
      execute(in, args, grid, out);
    }
  }
}

// The element offsets of a separable load: a part for each row, one for each key, and whether the
// keys are contiguous.
struct SplitOffsets {
  std::int64_t* of_row;
  std::int64_t* of_key;
  std::int64_t* keys_contiguous;
};
ATTN_INLINE SplitOffsets split_offsets_of(const Evaluation& e, const expr::Instruction& in) {
  auto* memory = reinterpret_cast<std::int64_t*>(e.tile.scratch + in.extra_offset);
  return {memory, memory + expr::kMaxTileRows, memory + expr::kMaxTileRows + expr::kMaxTileKeys};
}

static void split_offsets(const Evaluation& e, const expr::Instruction& in) {
  const SplitOffsets split = split_offsets_of(e, in);
  for (int r = 0; r < e.tile.rows; ++r) split.of_row[r] = 0;
  for (int j = 0; j < e.tile.keys; ++j) split.of_key[j] = 0;
  const expr::BufferView& view = e.program.buffers[in.buffer];
  for (int d = 0; d < in.num_args; ++d) {
    const expr::Instruction& index = e.program.instructions[in.args[d]];
    const bool by_key = index.dependence == expr::Dependence::key;
    const int step = index.dependence == expr::Dependence::uniform ? 0 : 1;
    std::int64_t* of = by_key ? split.of_key : split.of_row;
    const int count = by_key ? e.tile.keys : e.tile.rows;
    for (int i = 0; i < count; ++i) {
      of[i] = sum_of(of[i], offset_of(view, d, int_at(e.result(index) + i * step)));
    }
  }
  *split.keys_contiguous = 1;
  for (int j = 0; j < e.tile.keys; ++j) {
    if (split.of_key[j] == kOutside || split.of_key[j] != split.of_key[0] + j) {
      *split.keys_contiguous = 0;
    }
  }
}

// Copies a key's value to all lanes, for the strip.
static void spread_keys(const Evaluation& e, int keys) {
  for (int i = 0; i < e.program.first_full; ++i) {
    const expr::Instruction& in = e.program.instructions[i];
    if (!in.spread) continue;
    const float* values = e.result(in) + e.strip;
    float* out = e.tile.scratch + in.extra_offset;
    for (int j = 0; j < keys; ++j) store(out + j * kLanes, bit_cast<F>(set1(int_at(values + j))));
  }
}

// Full instructions over a strip; the result of the last goes to `last`, or to its own memory where
// that is null.
static void run_strip(const Evaluation& e, int keys, float* last) {
  spread_keys(e, keys);
  const Grid grid{keys, e.tile.rows / kLanes, e.tile.rows};
  for (int i = e.program.first_full; i < e.program.count; ++i) {
    const expr::Instruction& in = e.program.instructions[i];
    if (in.op == expr::Op::score) continue;
    float* out = i + 1 == e.program.count && last != nullptr ? last : e.result(in);
    if (in.separable) {
      const SplitOffsets split = split_offsets_of(e, in);
      load_separable(e.program.buffers[in.buffer], split.of_row, split.of_key + e.strip,
                     *split.keys_contiguous != 0, grid, out);
      continue;
    }
    Operand args[kMaxRank];
    for (int a = 0; a < in.num_args; ++a) args[a] = strip_operand(e, in.args[a]);
    if (in.op == expr::Op::load) {
      load_elements(e.program.buffers[in.buffer], args, grid, out);
    } else {
      execute(in, args, grid, out);
    }
  }
}

// Calls finish(operand of the result, grid, out of the strip) for each strip.
template <class Finish>
ATTN_INLINE void for_each_strip(const expr::BoundProgram& program, const expr::TileContext& tile,
                                const float* s, float* out, bool in_place, const Finish& finish) {
  Evaluation e{program, tile};
  run_flat(e);
  for (int i = program.first_full; i < program.count; ++i) {
    if (program.instructions[i].separable) split_offsets(e, program.instructions[i]);
  }
  for (e.strip = 0; e.strip < tile.keys; e.strip += expr::kStripKeys) {
    const int left = tile.keys - e.strip;
    const int keys = left < expr::kStripKeys ? left : expr::kStripKeys;
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(e.strip) * tile.rows;
    e.score = s + at;
    run_strip(e, keys, in_place ? out + at : nullptr);
    finish(strip_operand(e, program.count - 1), Grid{keys, tile.rows / kLanes, tile.rows},
           out + at);
  }
}

// out[key][row] <- the program's value (float32, or the bits of int32; boolean 0 or -1) at score
// s[key][row]. out may be s, and overlaps it in no other way. Agrees with evaluate<float>: exactly
// but for exp, exp2, log, tanh, erf, sin and cos, which are within 2 ulp.
static void evaluate(const expr::BoundProgram& program, const expr::TileContext& tile,
                     const float* s, float* out) {
  const expr::Instruction& last = program.instructions[program.count - 1];
  const bool in_place = last.dependence == expr::Dependence::full && last.op != expr::Op::score;
  for_each_strip(program, tile, s, out, in_place,
                 [=](const Operand& value, const Grid& grid, float* to) {
                   if (!in_place) map1<F>(&value, grid, to, [](F x) { return x; });
                 });
}

// s[key][row] <- the float32 program's value at s[key][row].
static void evaluate_score(const expr::BoundProgram& program, const expr::TileContext& tile,
                           float* s) {
  evaluate(program, tile, s, s);
}

// s[key][row] <- -inf where the boolean program is false.
static void apply_mask(const expr::BoundProgram& program, const expr::TileContext& tile, float* s) {
  for_each_strip(program, tile, s, s, false, [](const Operand& seen, const Grid& grid, float* to) {
    const Operand args[2] = {seen, {to, grid.key_stride, kLanes}};
    map2<F>(args, grid, to, [](F visible, F x) {
      return select(bit_cast<I>(visible), x, set1(-__builtin_inff()));
    });
  });
}

}  // namespace attn::cpu::ATTN_ISA
