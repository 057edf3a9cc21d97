// Rung 9, pipelined: eight warps of ldmatrix, each with 64 x 32 elements, read 24 KB of operands
// for each 16 steps and their copies store 8 KB: 256 cycles of shared memory for 128 products,
// which take as long on an A100 and 205 cycles on Hopper. And at each tile of k they work out
// addresses and wait for the first operands while nothing is multiplied. Here warps have 64 x 64
// elements, a third less to read for each product. Operands of the next 16 steps are loaded beside
// every product, the last of a tile too: the barrier between tiles comes before that product, which
// has all it needs. Addresses move on by sums, copies are asked for between the products, and C
// leaves through shared memory in whole lines. Expected: 1.3 to 1.6 times, most of what mma.sync
// can give: on Hopper two thirds of the tensor cores' rate, the rest needs wgmma. Measured: 1.9
// times (500 TFLOP/s, 0.64 of cuBLAS, which has wgmma).
//
// Tile: by the table of src/cuda/matmul/matmul_sm80.cpp, 128 x 256 x 64 with eight warps or 128
// x 128 x 32 with four for large products. Takes what vector_loads takes. Reads of C also kRows,
// kColumns, kDepth, kStages, kThreads and kWarpsDown, the warps below each other.
#pragma once

#include "device.cuh"
#include "matmul/common.cuh"
#include "ptx/mbarrier.cuh"
#include "tile/shared_product.cuh"

namespace attn::device {

// What a thread copies of the tiles of one operand, which lie in shared memory as they do in
// memory: [lane][step] where neighbours along k lie together, else [step][lane]. Lanes are rows of
// A, columns of B.
template <class C, bool kStepsTogether, int kLanes>
struct OperandCopy {
  using Tile = SharedTile<kStepsTogether ? C::kDepth : kLanes>;
  using Share = TileShare<Tile, C::kThreads>;
  static constexpr int kRows = kStepsTogether ? kLanes : C::kDepth;
  static constexpr int kBytes = kRows * Tile::kRowBytes;
  static constexpr int kDown = kRows / Share::kDown, kAcross = Tile::kChunks / Share::kAcross;
  static constexpr int kCopies = kDown * kAcross;  // of 16 bytes
  static_assert(kRows % Share::kDown == 0, "threads share the rows evenly");

  const char* from;  // this thread's first chunk of the tile that is asked for next
  long long row;     // bytes between rows in memory
  int lanes, steps;  // that the matrix has from that chunk on
  unsigned to;       // where it lies in the first stage

  // first: of the tile's first step; row_stride: in elements; lanes, steps: of the matrix from
  // there.
  ATTN_DEVICE OperandCopy(const void* matrix, long long first, long long row_stride, int lanes_left,
                          int steps_left, unsigned tile)
      : row(2 * row_stride) {
    from = static_cast<const char*>(matrix) + 2 * first + Share::row() * row + 16 * Share::column();
    lanes = lanes_left - (kStepsTogether ? Share::row() : 8 * Share::column());
    steps = steps_left - (kStepsTogether ? 8 * Share::column() : Share::row());
    to = tile + static_cast<unsigned>(Tile::offset(Share::row(), Share::column()));
  }
  ATTN_DEVICE void copy(int i, unsigned stage) const {
    const int rows = i % kDown * Share::kDown, chunks = i / kDown * Share::kAcross;
    const int lane = kStepsTogether ? rows : 8 * chunks, step = kStepsTogether ? 8 * chunks : rows;
    copy_async(to + stage + static_cast<unsigned>(rows * Tile::kRowBytes + 16 * chunks),
               from + rows * row + 16 * chunks, lane < lanes && step < steps);
  }
  ATTN_DEVICE void move_on(int by) {
    from += kStepsTogether ? 2 * by : by * row;
    steps -= by;
  }
};

template <class C>
struct Pipelined {
  static constexpr int kWarps = C::kThreads / 32, kWarpsAcross = kWarps / C::kWarpsDown;
  static constexpr int kWarpRows = C::kRows / C::kWarpsDown;
  static constexpr int kWarpColumns = C::kColumns / kWarpsAcross;
  static constexpr int kDown = kWarpRows / 16, kAcross = kWarpColumns / 16, kSteps = C::kDepth / 16;
  static_assert(kSteps % 2 == 0, "each step of every tile has the same of the two fragments");
  using CopyA = OperandCopy<C, C::kStepsTogetherA, C::kRows>;
  using CopyB = OperandCopy<C, C::kStepsTogetherB, C::kColumns>;
  static constexpr int kStageBytes = CopyA::kBytes + CopyB::kBytes;
  static constexpr int kLast = (C::kStages - 1) * kStageBytes;  // where the last stage begins
  using Element = typename C::Element;
  using OperandA = SharedOperand<Element, typename CopyA::Tile, Side::a, !C::kStepsTogetherA>;
  using OperandB = SharedOperand<Element, typename CopyB::Tile, Side::b, !C::kStepsTogetherB>;
  using Sums = float[kDown][kAcross][8];

  static ATTN_DEVICE int warp() { return static_cast<int>(threadIdx.x / 32); }
  static ATTN_DEVICE int row() { return warp() / kWarpsAcross * kWarpRows; }
  static ATTN_DEVICE int column() { return warp() % kWarpsAcross * kWarpColumns; }
  // How many bytes further the next stage lies.
  static ATTN_DEVICE int to_next(int stage) { return stage == kLast ? -kLast : kStageBytes; }

  struct Copies {
    CopyA a;
    CopyB b;
    int ahead;      // the first step of the tile that is asked for next
    int stage = 0;  // where it goes

    ATTN_DEVICE Copies(const MatmulParams& p, const MatmulTile& t, unsigned shared, int first)
        : a(p.a, t.batch * p.a_batch + t.row * p.a_row + first * p.a_step,
            C::kStepsTogetherA ? p.a_row : p.a_step, p.m - t.row, p.k - first, shared),
          b(p.b, t.batch * p.b_batch + first * p.b_step + t.column * p.b_column,
            C::kStepsTogetherB ? p.b_column : p.b_step, p.n - t.column, p.k - first,
            shared + CopyA::kBytes),
          ahead(first) {}
    // A share of the tile's copies for each of its kSteps steps; what comes after the last step of
    // the product is zeros.
    ATTN_DEVICE void ask(int part) const {
      constexpr int kCopies = CopyA::kCopies + CopyB::kCopies;
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        if (i * kSteps / kCopies != part) continue;
        if (i < CopyA::kCopies) {
          a.copy(i, static_cast<unsigned>(stage));
        } else {
          b.copy(i - CopyA::kCopies, static_cast<unsigned>(stage));
        }
      }
    }
    // Goes on to the next step once all of this one has been asked for.
    ATTN_DEVICE void move_on(const MatmulParams& p, const MatmulTile& t) {
      copy_async_commit();
      const int next = next_step<C>(p, t, ahead + C::kDepth);
      const int by = C::kMasked == 1 || C::kMasked == 2 ? next - ahead : C::kDepth;
      a.move_on(by);
      b.move_on(by);
      ahead = next;
      stage += to_next(stage);
    }
  };

  struct Fragments {
    unsigned a[kDown][4], b[kAcross][4];

    ATTN_DEVICE void load(const OperandA& from_a, const OperandB& from_b, int step) {
#pragma unroll
      for (int i = 0; i < kDown; ++i) from_a.load(a[i], i, step);
#pragma unroll
      for (int j = 0; j < kAcross; ++j) from_b.load(b[j], j, step);
    }
    ATTN_DEVICE void multiply_into(Sums& sums) const {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
#pragma unroll
        for (int i = 0; i < kDown; ++i) {
          multiply(Element{}, sums[i][j], a[i], b[j][0], b[j][1]);
          multiply(Element{}, sums[i][j] + 4, a[i], b[j][2], b[j][3]);
        }
      }
    }
  };

  static ATTN_DEVICE void multiply_all(const MatmulParams& p, const MatmulTile& t, unsigned shared,
                                       Sums& sums) {
    const int first = next_step<C>(p, t, 0);
    Copies copies(p, t, shared, first);
#pragma unroll
    for (int i = 0; i < C::kStages - 1; ++i) {
#pragma unroll
      for (int part = 0; part < kSteps; ++part) copies.ask(part);
      copies.move_on(p, t);
    }
    copies.ask(0);
    OperandA a(shared, 0, row());
    OperandB b(shared, CopyA::kBytes, column());
    int stage = 0;  // that is read
    Fragments f[2];
    copy_async_wait<C::kStages - 2>();
    __syncthreads();
    f[0].load(a, b, 0);
    for (int step = first; step < p.k; step = next_step<C>(p, t, step + C::kDepth)) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        if (i == kSteps - 1) {
          // All operands of this tile are loaded: its stage is free, the next one is there.
          copies.move_on(p, t);
          copy_async_wait<C::kStages - 2>();
          __syncthreads();
          const int by = to_next(stage);
          stage += by;
          a.lane += static_cast<unsigned>(by);
          b.lane += static_cast<unsigned>(by);
        }
        f[(i + 1) % 2].load(a, b, (i + 1) % kSteps);
        copies.ask((i + 1) % kSteps);
        f[i % 2].multiply_into(sums);
      }
    }
  }

  // f(row, column, values) of the tile for each pair of neighbours that this thread has sums of.
  template <class F>
  static ATTN_DEVICE void for_each_pair(Sums& sums, F f) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
#pragma unroll
        for (int r = 0; r < 8; r += 2) {
          f(row() + 16 * i + r / 2 % 2 * 8 + lane / 4, column() + 16 * j + r / 4 * 8 + lane % 4 * 2,
            sums[i][j] + r);
        }
      }
    }
  }

  // Each warp's part of C as rows of chunks of 16 bytes.
  static ATTN_DEVICE void store_rows(const MatmulParams& p, const MatmulTile& t, Sums& sums) {
    extern __shared__ __align__(1024) char memory[];
    using Part = SharedTile<kWarpColumns>;
    for_each_pair(sums, [&](int row, int column, float* x) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        // Only a bias is read from where C may have no element.
        const bool inside = C::kBias == 0 || (t.row + row < p.m && t.column + column + e < p.n);
        x[e] = inside ? finished<C>(p, t.row + row, t.column + column + e, x[e]) : 0.f;
      }
    });
    const int part = warp() * kWarpRows * Part::kRowBytes;
    put_sums<Output<C>, Part, 16>(sums, 1.f, part, 0, 0);
    __syncwarp();
    constexpr int kAtOnce = 32 / Part::kChunks;  // rows
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int chunk = lane % Part::kChunks, first = lane / Part::kChunks;
    const int at_column = t.column + column() + 8 * chunk;
#pragma unroll
    for (int i = 0; i < kWarpRows; i += kAtOnce) {
      const int at_row = t.row + row() + first + i;
      if (at_row >= p.m || at_column >= p.n) continue;
      const char* from = memory + part + Part::offset(first + i, chunk);
      auto* to = element<Output<C>>(p.c, t.batch * p.c_batch + at_row * p.c_row + at_column);
      if (at_column + 8 <= p.n) {
        *reinterpret_cast<Words4*>(to) = *reinterpret_cast<const Words4*>(from);
      } else {
        const auto* elements = reinterpret_cast<const unsigned short*>(from);
        for (int e = 0; at_column + e < p.n; ++e) to[e] = elements[e];
      }
    }
  }
  static ATTN_DEVICE void store(const MatmulParams& p, const MatmulTile& t, Sums& sums) {
    if constexpr (C::kAlignedC && !C::kFloatOutput) {
      // What was asked for after the last step, zeros, is not to come over C. Of the last copies no
      // group was made yet, and only groups are waited for.
      copy_async_commit();
      copy_async_wait<0>();
      __syncthreads();
      store_rows(p, t, sums);
    } else {
      for_each_pair(sums, [&](int row, int column, const float* x) {
        store_pair<C>(p, t.batch, t.row + row, t.column + column, x[0], x[1]);
      });
    }
  }
};

template <class C>
ATTN_DEVICE void matmul_pipelined(const MatmulParams& p) {
  extern __shared__ __align__(1024) char memory[];
  const MatmulTile t = matmul_tile(p, static_cast<int>(blockIdx.x), C::kRows, C::kColumns);
  if (!has_tile<C>(p, t)) return;
  typename Pipelined<C>::Sums sums = {};
  Pipelined<C>::multiply_all(p, t, shared_address(memory), sums);
  Pipelined<C>::store(p, t, sums);
}

}  // namespace attn::device
