// Rung 11, warp_specialised: in tma_wgmma the threads that multiply also ask for tiles, and wait
// for each other at every one. Here a producer does nothing but ask, as soon as a place in the ring
// is free, and two warpgroups do nothing but multiply; they take its registers (setmaxnreg), so
// that a tile of C is 128 x 256: 85 flops a byte from L2 instead of 64. Expected: 1.1 to 1.3 times.
// Measured: 1.29 times (694 TFLOP/s). The tensor cores still stand still while a block begins and
// ends.
//
// Tile: 128 x 256 x 64, a producer and two warpgroups, four stages.
#pragma once

#include "device.cuh"
#include "matmul/hopper_ring.cuh"

namespace attn::device {

// Counts the tiles that went through a ring.
template <class C>
struct RingPlace {
  int stage = 0;
  unsigned parity = 0;
  ATTN_DEVICE void advance() {
    if (++stage == C::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The steps of a tile that are multiplied, as next_step has them, by all threads of a warp: the
// mask is read for 32 blocks along k at once.
template <class C>
struct MaskedSteps {
  static constexpr bool kMasked = C::kMasked == 1 || C::kMasked == 2;
  int first_block = -1;  // of those whose bits are known
  unsigned there = 0;

  ATTN_DEVICE int next(const MatmulParams& p, const MatmulTile& t, int step) {
    if constexpr (kMasked) {
      while (step < p.k) {
        const int block = step / C::kBlock, in_word = block % 32;
        if (block - in_word != first_block) look(p, t, block - in_word);
        const unsigned left = there >> in_word;
        if (left & 1) return step;
        step = (block + (left == 0 ? 32 - in_word : __ffs(static_cast<int>(left)) - 1)) * C::kBlock;
      }
    }
    return step;
  }

 private:
  ATTN_DEVICE void look(const MatmulParams& p, const MatmulTile& t, int block) {
    const int at = (block + static_cast<int>(threadIdx.x % 32)) * C::kBlock;
    const bool inside = at < p.k && (C::kMasked == 1 ? t.row < p.m : t.column < p.n);
    first_block = block;
    there = __ballot_sync(0xffffffff, inside && (C::kMasked == 1 ? has_block<C>(p, t.row, at)
                                                                 : has_block<C>(p, at, t.column)));
  }
};

// Asks for tiles of the steps [first, last) of a tile of C; by all threads of a warp, so that
// addresses are scalar, of which one asks.
template <class C>
ATTN_DEVICE void produce(const MatmulParams& p, const MatmulMaps& maps, const HopperRing<C>& ring,
                         const MatmulTile& t, int first, int last, RingPlace<C>& place) {
  MaskedSteps<C> steps;
  for (int step = steps.next(p, t, first); step < last;
       step = steps.next(p, t, step + ring.kDepth)) {
    mbarrier_wait(ring.empty(place.stage), place.parity ^ 1);
    if (elect_one()) ring.load(p, maps, t, step, place.stage);
    place.advance();
  }
}

// sum <- their products, of 8-bit floats, whose sums tensor cores keep in 13 bits: each stage of
// 128 steps is a sum of its own and is added in float. Meanwhile the next stage is multiplied into
// another sum, where there are registers for it, and by the other warpgroup.
template <class C>
ATTN_DEVICE void consume_float8(const MatmulParams& p, const HopperRing<C>& ring, MatmulTile t,
                                int group, int first, int last, RingPlace<C>& place,
                                float (&sum)[C::kColumns / 2]) {
  constexpr int kCount = C::kColumns / 2, kParts = C::kColumns <= 128 ? 2 : 1;
  float part[kParts][kCount];
#pragma unroll
  for (float& x : sum) x = 0;
  MaskedSteps<C> steps;
  int step = steps.next(p, t, first), before = 0;
  const auto start = [&](float(&into)[kCount]) {
    mbarrier_wait(ring.full(place.stage), place.parity);
    pin(into);
    wgmma_fence();
    ring.multiply(place.stage, group, 0, into);
    before = place.stage;
    place.advance();
    step = steps.next(p, t, step + ring.kDepth);
  };
  const auto add = [&](float(&these)[kCount], int stage) {
    pin(these);
    ring.release(stage);
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum[i] += these[i];
  };
  if constexpr (kParts == 1) {
    while (step < last) {
      start(part[0]);
      wgmma_wait<0>();
      add(part[0], before);
    }
  } else {
    if (step >= last) return;
    start(part[0]);
    while (true) {
      int stage = before;
      if (step >= last) {
        wgmma_wait<0>();
        return add(part[0], stage);
      }
      start(part[1]);
      wgmma_wait<1>();
      add(part[0], stage);
      stage = before;
      if (step >= last) {
        wgmma_wait<0>();
        return add(part[1], stage);
      }
      start(part[0]);
      wgmma_wait<1>();
      add(part[1], stage);
    }
  }
}

// sum <- their products, 0 where there are none. A stage is given back when the product after it
// runs, so that the tensor cores always have one waiting. The tile comes by value: by reference the
// compiler makes other code of what follows.
template <class C>
ATTN_DEVICE void consume(const MatmulParams& p, const HopperRing<C>& ring, MatmulTile t, int group,
                         int first, int last, RingPlace<C>& place, float (&sum)[C::kColumns / 2]) {
  if constexpr (C::kFloat8) {
    consume_float8<C>(p, ring, t, group, first, last, place, sum);
    return;
  }
  int previous = -1;
  pin(sum);
  MaskedSteps<C> steps;
  first = steps.next(p, t, first);
  for (int step = first; step < last; step = steps.next(p, t, step + ring.kDepth)) {
    mbarrier_wait(ring.full(place.stage), place.parity);
    wgmma_fence();
    ring.multiply(place.stage, group, step > first, sum);
    if (previous >= 0) {
      wgmma_wait<1>();
      ring.release(previous);
    }
    previous = place.stage;
    place.advance();
  }
  wgmma_wait<0>();
  pin(sum);
  if (previous >= 0) ring.release(previous);
  if (previous < 0) {
#pragma unroll
    for (float& x : sum) x = 0;
  }
}

inline constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

// The frame of the rungs with a producer: producer(ring) in a warp, consumer(ring, group) in the
// warpgroups that multiply. Blocks of a cluster meet once in between at the beginning and, as
// they reach each other's shared memory, at the end. All that needs no operand is done while the
// kernel before this one in the stream still runs.
template <class C, class Producer, class Consumer>
ATTN_DEVICE void specialise(const MatmulMaps& maps, Producer producer, Consumer consumer) {
  extern __shared__ __align__(1024) char memory[];
  const HopperRing<C> ring{shared_address(memory)};
  if (threadIdx.x == 32) {
    prefetch_tensor_map(maps.a);
    prefetch_tensor_map(maps.b);
    ring.init();
  }
  __syncthreads();
  constexpr bool kCluster = C::kMulticast > 1 || C::kSplits > 1;
  if constexpr (kCluster) cluster_arrive();
  launch_dependents();
  wait_for_dependencies();
  if constexpr (kCluster) cluster_wait();
  const int warpgroup = uniform(static_cast<int>(threadIdx.x / 128));
  // A block of one warpgroup beside the producer has 255 registers a thread.
  if (warpgroup == 0) {
    if constexpr (C::kGroups > 1) release_registers<kProducerRegisters>();
    if (uniform(static_cast<int>(threadIdx.x / 32)) == 0) producer(ring);
    if constexpr (C::kSplits > 1) {  // what consumers do between their sums and the end
      __syncwarp();
      cluster_arrive();
      cluster_wait();
    }
  } else {
    if constexpr (C::kGroups > 1) take_registers<kConsumerRegisters>();
    consumer(ring, warpgroup - 1);
  }
  if constexpr (C::kMulticast > 1) {
    __syncwarp();
    cluster_arrive();
    cluster_wait();
  }
}

template <class C>
ATTN_DEVICE void matmul_warp_specialised(const MatmulParams& p, const MatmulMaps& maps) {
  const MatmulTile t =
      matmul_tile(p, static_cast<int>(blockIdx.x), HopperRing<C>::kRows, C::kColumns);
  specialise<C>(
      maps,
      [&](const HopperRing<C>& ring) {
        RingPlace<C> place;
        if (has_tile<C>(p, t)) produce<C>(p, maps, ring, t, 0, p.k, place);
      },
      [&](const HopperRing<C>& ring, int group) {
        RingPlace<C> place;
        float sum[C::kColumns / 2];
        if (!has_tile<C>(p, t)) return;
        consume<C>(p, ring, t, group, 0, p.k, place, sum);
        for_each_pair(sum, [&](int row, int column, float x, float y) {
          store_pair<C>(p, t.batch, t.row + 64 * group + row, t.column + column, x, y);
        });
      });
}

}  // namespace attn::device
