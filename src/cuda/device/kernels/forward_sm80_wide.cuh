// ForwardWide by mma.sync, on any architecture from sm_80 on.
//
// Each warp has some keys of S and all rows of its columns of O. Example: 64 rows of 576 columns,
// 64 keys and 8 warps. A warp has 16 rows x 32 keys of S, and 64 rows x 64 columns of O, which are
// 128 registers of a thread; 16 rows x 512 columns would be 256. kBlockN is 8 or a multiple of 16
// for each warp of a group.
//
// Of 16 rows each warp has all of Q in registers (kQInRegisters): 144 of a thread at 576 columns,
// beside 32 of O. Shared memory then has room for three tiles of 64 keys on an H100.
#pragma once

#include "device.cuh"
#include "kernels/forward_sm80_wide/layout.cuh"
#include "kernels/forward_sm80_wide/products.cuh"
#include "kernels/forward_wide.cuh"

namespace attn::device {

template <class C, class Expressions>
struct ForwardSm80Wide : ForwardWide<C, Expressions, ForwardSm80WideWarp<C>> {
  using Wide = ForwardWide<C, Expressions, ForwardSm80WideWarp<C>>;
  using Products = ForwardSm80WideProducts<C>;
  using Warp = typename Wide::Warp;
  using Blocks = typename Wide::Blocks;
  using Wide::shared;

  // A block of keys that was asked for.
  struct Asked {
    int block;  // -1: none
    bool mixed;
  };
  // Asks for the next block of the list, into the tiles of a stage, where there is one.
  ATTN_DEVICE Asked ask(Blocks& list, int stage) const {
    Asked next{-1, false};
    if (list.more()) {
      next = {list.block(), list.mixed()};
      this->load_k(stage, next.block);
      this->load_v(stage, next.block);
      list.advance(*this, 0);
    }
    copy_async_commit();
    return next;
  }

  // O of a block whose S is at hand. at_hand: called when nobody reads K any more but as V.
  template <class F>
  ATTN_DEVICE void add_block(Warp& w, int stage, const Asked& asked, F at_hand) const {
    this->modify(w, asked.block, asked.mixed);
    this->store_maxima(w);
    __syncthreads();  // maxima are here; nobody reads K any more but as V
    at_hand();
    const bool raised = this->exponentiate(w);
    if constexpr (C::kDropout) this->drop_elements(w, asked.block);
    this->store_p(w);
    if constexpr (C::kStages == 1 && !C::kVInK) copy_async_wait<1>();
    if (__syncthreads_or(raised)) this->multiply_o(w);  // P and V are here
    Products::multiply_pv(w.o, shared, stage);
  }

  // Goes through the blocks of keys of a list that is not empty, with kStages - 1 blocks on their
  // way while one is used.
  ATTN_DEVICE void attend(Warp& w, Blocks& list) const {
    if constexpr (C::kStages == 1) return attend_in_turn(w, list);
    constexpr int kAhead = C::kStages > 1 ? C::kStages - 1 : 1;
    this->load_q();
    if constexpr (C::kQInRegisters) copy_async_commit();
    Asked asked[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) asked[i] = ask(list, i);
    typename Products::Queries q;
    if constexpr (C::kQInRegisters) {
      copy_async_wait<kAhead>();
      __syncthreads();  // Q is here
      Products::load_queries(q, shared);
    }
    int stage = 0, last = kAhead;
    do {
      const Asked now = asked[0];
      copy_async_wait<kAhead - 1>();
      __syncthreads();  // K is here; nobody reads P, Q or the block before any more
#pragma unroll
      for (int i = 1; i < kAhead; ++i) asked[i - 1] = asked[i];
      asked[kAhead - 1] = ask(list, last);
      if constexpr (C::kQInRegisters) {
        Products::multiply_qk(w.s, q, shared, stage);
      } else {
        Products::multiply_qk(w.s, shared, stage);
      }
      add_block(w, stage, now, [] {});
      last = stage;
      stage = stage + 1 < C::kStages ? stage + 1 : 0;
    } while (asked[0].block >= 0);
  }

  // The same with one tile of K and one of V, each of which is on its way while the other is used.
  ATTN_DEVICE void attend_in_turn(Warp& w, Blocks& list) const {
    this->load_q();
    this->load_k(0, list.block());
    copy_async_commit();
    bool ends;
    do {
      const Asked now{list.block(), list.mixed()};
      list.advance(*this, 0);
      ends = !list.more();
      copy_async_wait<0>();
      __syncthreads();  // K is here; nobody reads P or the block before any more
      this->load_v(0, now.block);
      copy_async_commit();
      Products::multiply_qk(w.s, shared, 0);
      add_block(w, 0, now, [&] {
        if constexpr (!C::kVInK) {
          if (!ends) this->load_k(0, list.block());
          copy_async_commit();  // of nothing too: the wait for V counts groups
        }
      });
      if (C::kVInK && !ends) {
        __syncthreads();  // nobody reads K as V any more
        this->load_k(0, list.block());
        copy_async_commit();
      }
    } while (!ends);
  }
};

template <class C, class Expressions>
ATTN_DEVICE void forward_sm80_wide(const ForwardParams& p, const Expressions& e) {
  extern __shared__ __align__(128) char memory[];
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  using Kernel = ForwardSm80Wide<C, Expressions>;
  const auto tile = QueryTile<C>::at(p, block_index_anew());
  if (C::kByLength && tile.split > 0 && tile.begin >= tile.end) return;
  Kernel{{{}, p, e, tile, memory, shared}}.template run<Kernel>();
}

}  // namespace attn::device
