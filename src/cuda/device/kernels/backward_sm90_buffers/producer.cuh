// The warp of the Hopper kernel of a bias's gradient that deals tiles and asks for operands.
#pragma once

#include "device.cuh"
#include "kernels/backward_sm90_buffers/layout.cuh"
#include "ptx/tma.cuh"
#include "schedule/block_list.cuh"
#include "schedule/dealer.cuh"

namespace attn::device {

template <class C, class Expressions, class BufferGradients>
struct BackwardSm90BuffersProducer {
  using Layout = BackwardSm90BuffersLayout<C>;
  using Tiles = BufferTiles<C, BufferGradients>;
  using Step = BackwardSm90BuffersStep;

  const BackwardSm90BuffersRing<C>& ring;
  const BackwardParams& p;
  const Expressions& e;
  const BufferGradients& gradients;
  const BackwardMaps& maps;

  // Asks for the rows and keys of use n. For one thread.
  template <int kPanels>
  ATTN_DEVICE void load(unsigned n, const TensorMap& rows, const TensorMap& keys,
                        const GradientTile<C>& tile, int key) const {
    const Sequence& q = tile.sequence;
    const unsigned ready = ring.barrier(Layout::kFull, BackwardRing<C::kStages>::stage(n));
    mbarrier_arrive_expect(ready, kPanels * (Layout::kRowPanel + Layout::kKeyPanel));
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const unsigned to = ring.place(n);
      tma_load_4d(to + static_cast<unsigned>(panel * Layout::kRowPanel), rows, ready, 64 * panel,
                  q.row_q + tile.first, tile.head, C::kPackedQ ? 0 : q.batch, kEvictLast);
      tma_load_4d(to + static_cast<unsigned>(Layout::kKeysAt + panel * Layout::kKeyPanel), keys,
                  ready, 64 * panel, q.row_k + key, tile.head_k(p), C::kPackedK ? 0 : q.batch,
                  kEvictLast);
    }
  }
  // Puts a step to the place of use n, which is free.
  ATTN_DEVICE void put_step(unsigned n, const Step& s) const {
    store_shared(ring.step_address(n), {s.flags, s.query0, s.key0, s.head});
    store_shared(ring.step_address(n) + 16, {s.batch, s.length_q, s.length_k, s.split});
  }
  // A step without products. For one thread.
  ATTN_DEVICE void publish_empty(unsigned n, const Step& s) const {
    ring.wait_empty(n);
    put_step(n, s);
    mbarrier_arrive(ring.barrier(Layout::kFull, BackwardRing<C::kStages>::stage(n)));
  }
  // A step of a tile, and its pair of batch entry and head.
  static ATTN_DEVICE Step step(int flags, const Tiles& tiles, const GradientTile<C>& tile) {
    const Sequence& q = tile.sequence;
    return {flags,      tile.first, tiles.block * C::kBlockN, tile.head, q.batch, q.length_q,
            q.length_k, tiles.split};
  }
  ATTN_DEVICE void publish(unsigned n, int flags, const Tiles& tiles, int i) const {
    const GradientTile<C> tile = tiles.tile(i);
    const Step s = step(flags, tiles, tile);
    ring.wait_empty(n);
    put_step(n, s);
    load<Layout::kPanels>(n, maps.q, maps.k, tile, s.key0);
    ring.wait_empty(n + 1);
    load<Layout::kPanelsV>(n + 1, maps.d_o, maps.v, tile, s.key0);
  }

  // Asks for the operands of a tile's steps, from use n on. For a warp, which finds together what
  // they see.
  ATTN_DEVICE void take_tile(const Tiles& tiles, unsigned& n, bool asks) const {
    const auto coverage_of = [&](int i) { return tiles.coverage(e, i); };
    BlockList list(coverage_of, tiles.count);
    if (!list.more()) {
      if (asks) publish_empty(n, step(Step::kUnseen, tiles, tiles.tile(0)));
      ++n;
      return;
    }
    while (list.more()) {
      const int i = list.block();
      int flags = list.mixed() ? Step::kMixed : 0;
      list.advance();
      if (!list.more()) flags |= Step::kLast;
      if (asks) publish(n, flags, tiles, i);
      __syncwarp();
      n += 2;
    }
  }

  ATTN_DEVICE void run() const {
    const bool asks = threadIdx.x == 0;
    if (asks) {
      prefetch_tensor_map(maps.q);
      prefetch_tensor_map(maps.k);
      prefetch_tensor_map(maps.d_o);
      prefetch_tensor_map(maps.v);
    }
    TileDealer dealer(p.counter);
    unsigned n = 0;  // uses of the ring so far
    const auto draw = [&] { return __shfl_sync(~0u, asks ? dealer.next() : 0, 0); };
    for (int index = draw(); index < p.num_tiles; index = draw()) {
      take_tile(Tiles::at(p, gradients.splits, index), n, asks);
    }
    if (!asks) return;
    publish_empty(n, {Step::kEnd, 0, 0, 0, 0, 0, 0, 0});
    dealer.finish();
  }
};

}  // namespace attn::device
