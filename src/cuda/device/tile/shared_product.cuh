// Products of a warp whose operands lie in shared tiles, and whose sums are blocks of 16 x 16:
// sums[i][j] is row block i and column block j, 4 registers of eight columns as in
// tile/accumulator.cuh and 4 of the next eight.
#pragma once

#include "device.cuh"
#include "ptx/mma.cuh"
#include "tile/scalar.cuh"
#include "tile/shared_tile.cuh"

namespace attn::device {

enum class Side { a, b };  // rows of A, columns of B

// One operand of products m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"). Its outer index
// is the row of A or the column of B, its inner index the one that is summed over. Stored with a
// row for each outer index, or transposed, with a row for each inner one.
// Blocks of the outer index that a warp takes are kApart apart: 16, or more where warps take turns.
template <class Element, class Tile, Side kSide, bool kTransposed, int kApart = 16>
struct SharedOperand {
  int tile;       // offset in shared memory, a multiple of 128
  int first;      // outer index; the blocks after it must not carry into its bits
  unsigned lane;  // address where this lane reads

  // shared: the address of offset 0.
  ATTN_DEVICE SharedOperand(unsigned shared, int at, int outer) : tile(at), first(outer) {
    const int l = static_cast<int>(threadIdx.x % 32);
    // The four matrices of ldmatrix are the fragment's registers: of A two row blocks of eight
    // change faster than the inner index, of B slower.
    constexpr bool kRowsFirst = (kSide == Side::a) != kTransposed;
    const int row = kRowsFirst ? l % 16 : l / 16 * 8 + l % 8;
    const int chunk = kRowsFirst ? l / 16 : l / 8 % 2;
    lane = Tile::lane(shared + static_cast<unsigned>(at), (kTransposed ? 0 : outer) + row,
                      (kTransposed ? outer / 8 : 0) + chunk);
  }
  // The fragment of block `block` at the inner index 16 step.
  ATTN_DEVICE void load(unsigned (&r)[4], int block, int step) const {
    if constexpr (kTransposed) {
      load_matrices_transposed(r, Tile::further(lane, 16 * step, block * (kApart / 8)));
    } else {
      load_matrices(r, Tile::further(lane, kApart * block, 2 * step));
    }
  }
  // The same where blocks are counted from `block` on.
  ATTN_DEVICE auto from_block(int block) const {
    struct Further {
      const SharedOperand& of;
      int block;
      ATTN_DEVICE void load(unsigned (&r)[4], int further, int step) const {
        of.load(r, block + further, step);
      }
      ATTN_DEVICE float value(int further, int outer, int inner) const {
        return of.value(block + further, outer, inner);
      }
    };
    return Further{*this, block};
  }
  // outer: within block `block`.
  ATTN_DEVICE float value(int block, int outer, int inner) const {
    extern __shared__ __align__(128) char memory[];
    const int of = first + kApart * block + outer;
    const int row = kTransposed ? inner : of, column = kTransposed ? of : inner;
    return Scalar<Element>::from(*reinterpret_cast<const unsigned short*>(
        memory + tile + Tile::offset(row, column / 8) + 2 * (column % 8)));
  }
};

template <int kRows, int kColumns>
ATTN_DEVICE void clear(float (&sums)[kRows][kColumns][8]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
#pragma unroll
      for (float& x : sums[i][j]) x = 0;
    }
  }
}

// sums += A B over kSteps times 16. Fragments of the next step are loaded before the products of
// this one; beside(step) is other work, called between them.
template <class Element, int kSteps, int kRows, int kColumns, class A, class B, class Beside>
ATTN_DEVICE void add_product(float (&sums)[kRows][kColumns][8], const A& a, const B& b,
                             Beside beside) {
  unsigned x[2][kRows][4], y[2][kColumns][4];
  const auto load = [&](int step) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) a.load(x[step % 2][i], i, step);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) b.load(y[step % 2][j], j, step);
  };
  load(0);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step + 1 < kSteps) load(step + 1);
    beside(step);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const unsigned(&of_b)[4] = y[step % 2][j];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        multiply(Element{}, sums[i][j], x[step % 2][i], of_b[0], of_b[1]);
        multiply(Element{}, sums[i][j] + 4, x[step % 2][i], of_b[2], of_b[3]);
      }
    }
  }
}

template <class Element, int kSteps, int kRows, int kColumns, class A, class B>
ATTN_DEVICE void add_product(float (&sums)[kRows][kColumns][8], const A& a, const B& b) {
  add_product<Element, kSteps>(sums, a, b, [](int) {});
}

// Does the same, but where A is 0 it takes nothing of B, whatever that is: for tiles with
// infinities or NaN.
template <class Element, int kSteps, int kRows, int kColumns, class A, class B>
ATTN_DEVICE void add_seen_product(float (&sums)[kRows][kColumns][8], const A& a, const B& b) {
  const int row = static_cast<int>(threadIdx.x % 32 / 4);
  const int column = 2 * static_cast<int>(threadIdx.x % 4);
#pragma unroll 1
  for (int k = 0; k < 16 * kSteps; ++k) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float weight[2] = {a.value(i, row, k), a.value(i, row + 8, k)};
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int r = 0; r < 8; ++r) {
          const float x = b.value(j, column + r / 4 * 8 + r % 2, k);
          float& sum = sums[i][j][r];
          if (weight[r / 2 % 2] != 0) sum = fmaf(weight[r / 2 % 2], x, sum);
        }
      }
    }
  }
}

// Sums of a warp to offset `at` of shared memory, a multiple of 8, or from there to another warp:
// in the order of registers, two of each thread after those of the thread before it.
template <int kRows, int kColumns>
ATTN_DEVICE void put_registers(const float (&sums)[kRows][kColumns][8], int at) {
  extern __shared__ __align__(128) char memory[];
  auto* const to = reinterpret_cast<float2*>(memory + at) + threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4 * kRows * kColumns; ++i) {
    const float* const x = sums[i / 4 / kColumns][i / 4 % kColumns] + i % 4 * 2;
    to[32 * i] = make_float2(x[0], x[1]);
  }
}
template <int kRows, int kColumns>
ATTN_DEVICE void take_registers(float (&sums)[kRows][kColumns][8], int at) {
  extern __shared__ __align__(128) char memory[];
  const auto* const from = reinterpret_cast<const float2*>(memory + at) + threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4 * kRows * kColumns; ++i) {
    float* const x = sums[i / 4 / kColumns][i / 4 % kColumns] + i % 4 * 2;
    const float2 both = from[32 * i];
    x[0] = both.x;
    x[1] = both.y;
  }
}

// Sums, rounded, to a tile at offset `at` of shared memory: rows from `row` on, blocks of columns
// kApart apart from `column` on.
template <class Element, class Tile, int kApart, int kRows, int kColumns>
ATTN_DEVICE void put_sums(const float (&sums)[kRows][kColumns][8], float factor, int at, int row,
                          int column) {
  extern __shared__ __align__(128) char memory[];
  const int l = static_cast<int>(threadIdx.x % 32);
  const unsigned lane = Tile::lane(static_cast<unsigned>(at), row + l / 4, column / 8) +
                        4 * static_cast<unsigned>(l % 4);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
#pragma unroll
      for (int r = 0; r < 8; r += 2) {
        const unsigned to = Tile::further(lane, 16 * i + r / 2 % 2 * 8, kApart / 8 * j + r / 4);
        *reinterpret_cast<unsigned*>(memory + to) =
            Element::pack(sums[i][j][r] * factor, sums[i][j][r + 1] * factor);
      }
    }
  }
}

// Does the same for contiguous blocks, without a factor, by stmatrix; shared: the address of offset
// 0.
template <class Element, class Tile, int kRows, int kColumns>
ATTN_DEVICE void put_matrices(const float (&sums)[kRows][kColumns][8], unsigned shared, int at,
                              int row, int column) {
  const int l = static_cast<int>(threadIdx.x % 32);
  const unsigned lane =
      Tile::lane(shared + static_cast<unsigned>(at), row + l % 16, column / 8 + l / 16);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      unsigned words[4];
#pragma unroll
      for (int r = 0; r < 8; r += 2) {
        words[r / 2] = Element::pack(sums[i][j][r], sums[i][j][r + 1]);
      }
      store_matrices(Tile::further(lane, 16 * i, 2 * j), words);
    }
  }
}

}  // namespace attn::device
