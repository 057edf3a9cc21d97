// ForwardWide on Hopper (sm_90a), by warpgroup products.
//
// Two warpgroups have 64 rows. The first has S and the softmax of a block while the second asks for
// the next one; then each has half of the columns of O. Example: 576 and 512 columns and 64 keys. S
// is a product of 64 x 64 x 16 in 36 steps; O two of 64 x 256 x 16 in 4 steps, which are 128
// registers of a thread. Two tiles of 64 keys and Q are what shared memory holds, so that products
// of a block begin when all of those before are done, and its copy has all of that time.
#pragma once

#include "device.cuh"
#include "kernels/forward_sm90_wide/layout.cuh"
#include "kernels/forward_sm90_wide/products.cuh"
#include "kernels/forward_wide.cuh"
#include "ptx/tma.cuh"

namespace attn::device {

template <class C, class Expressions>
struct ForwardSm90Wide : ForwardWide<C, Expressions, ForwardSm90WideWarp<C>> {
  using Wide = ForwardWide<C, Expressions, ForwardSm90WideWarp<C>>;
  using Products = ForwardSm90WideProducts<C>;
  using Warp = typename Wide::Warp;
  using Blocks = typename Wide::Blocks;
  using Wide::shared;
  static_assert(C::kStages == 2 || (C::kStages == 1 && !C::kVInK));

  // P of a block, from its K. Returns whether O must be multiplied.
  ATTN_DEVICE bool score(Warp& w, int stage, int block, bool mixed) const {
    Products::multiply_qk(w.s, shared, stage);
    this->modify(w, block, mixed);
    this->store_maxima(w);
    __syncwarp();
    const bool raised = this->exponentiate(w);
    if constexpr (C::kDropout) this->drop_elements(w, block);
    this->store_p(w);
    return raised;
  }

  // Closes the group of copies that this thread has asked for, and waits for them.
  static ATTN_DEVICE void wait_for_copies() {
    copy_async_commit();
    copy_async_wait<0>();
  }

  // Goes through the blocks of keys of a list that is not empty.
  ATTN_DEVICE void attend(Warp& w, Blocks& list) const {
    const bool scores = uniform(this->has_scores() ? 1 : 0) != 0;
    if (!scores) {
      this->load_q();
      this->load_k(0, list.block());
      if constexpr (C::kStages == 2) this->load_v(0, list.block());
    }
    int stage = 0;
    while (true) {
      const int block = list.block();
      const bool mixed = list.mixed();
      list.advance(*this, 0);
      const bool ends = !list.more();
      wait_for_copies();
      fence_proxy_async();
      __syncthreads();  // K is here; nobody reads P or the block before any more
      bool raised = false;
      if (scores) {
        raised = score(w, stage, block, mixed);
      } else if constexpr (C::kStages == 1) {
        this->load_v(0, block);
        wait_for_copies();
      } else if (!ends) {
        this->load_k(stage ^ 1, list.block());
        this->load_v(stage ^ 1, list.block());
      }
      fence_proxy_async();
      if (__syncthreads_or(raised)) this->multiply_o(w);  // P and V are here
      if constexpr (C::kStages == 1) {
        if (!scores && !ends) this->load_k(0, list.block());
      }
      Products::multiply_pv(w.o, shared, stage);
      if (ends) break;
      stage ^= C::kStages - 1;
    }
  }
};

template <class C, class Expressions>
ATTN_DEVICE void forward_sm90_wide(const ForwardParams& p, const Expressions& e) {
  extern __shared__ __align__(1024) char memory[];
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  using Kernel = ForwardSm90Wide<C, Expressions>;
  const auto tile = QueryTile<C>::at(p, block_index_anew());
  if (C::kByLength && tile.split > 0 && tile.begin >= tile.end) return;
  Kernel{{{}, p, e, tile, memory, shared}}.template run<Kernel>();
}

}  // namespace attn::device
