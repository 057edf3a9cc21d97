// ForwardWide by mma.sync, on any architecture from sm_80 on.
//
// Each warp has some keys of S and all rows of its columns of O. Example: 64 rows of 576 columns,
// 64 keys and 8 warps. A warp has 16 rows x 32 keys of S, and 64 rows x 64 columns of O, which are
// 128 registers of a thread; 16 rows x 512 columns would be 256. kBlockN is 8 or a multiple of 16
// for each warp of a group.
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

  // Goes through the blocks of keys of a list that is not empty.
  ATTN_DEVICE void attend(Warp& w, Blocks& list) const {
    this->load_q();
    this->load_k(0, list.block());
    if constexpr (C::kStages == 2) this->load_v(0, list.block());
    copy_async_commit();
    int stage = 0;
    while (true) {
      const int block = list.block();
      const bool mixed = list.mixed();
      list.advance(*this, 0);
      const bool ends = !list.more();
      copy_async_wait<0>();
      __syncthreads();  // K is here; nobody reads P or the block before any more
      if constexpr (C::kStages == 2) {
        if (!ends) {
          this->load_k(stage ^ 1, list.block());
          this->load_v(stage ^ 1, list.block());
        }
      } else {
        this->load_v(0, block);
      }
      copy_async_commit();
      Products::multiply_qk(w.s, shared, stage);
      this->modify(w, block, mixed);
      this->store_maxima(w);
      __syncthreads();  // maxima are here; nobody reads K any more but as V
      if constexpr (C::kStages == 1 && !C::kVInK) {
        if (!ends) this->load_k(0, list.block());
        copy_async_commit();
      }
      const bool raised = this->exponentiate(w);
      if constexpr (C::kDropout) this->drop_elements(w, block);
      this->store_p(w);
      if constexpr (C::kStages == 1 && !C::kVInK) copy_async_wait<1>();
      if (__syncthreads_or(raised)) this->multiply_o(w);  // P and V are here
      Products::multiply_pv(w.o, shared, stage);
      if (ends) break;
      if constexpr (C::kStages == 1 && C::kVInK) {
        __syncthreads();  // nobody reads K as V any more
        this->load_k(0, list.block());
        copy_async_commit();
      }
      stage ^= C::kStages - 1;
    }
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
