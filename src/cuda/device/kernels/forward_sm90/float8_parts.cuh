// O of 8-bit floats in two places. Tensor cores cut their sums at 13 bits (docs/numerics.md,
// "Tensor cores"), which would leave nothing of a key beside ten thousand others. So what they have
// summed is added to a part of O in shared memory every few blocks, and they begin anew. It is in
// float32, and in bf16 where rows are wide, which is as much as O is rounded to.
#pragma once

#include "device.cuh"
#include "kernels/forward_sm90/layout.cuh"
#include "ptx/math.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"

namespace attn::device {

// What a consumer keeps of it. With kSumsByProduct P V has the sums of P too, as V has a column of
// ones: sums of what is multiplied, which is rounded to 3 bits, so that O is an average of V
// whatever rounding and cutting did. LSE is then as coarse as they are; where it is asked for, P is
// summed before it is rounded.
template <class C>
struct Float8State {
  float sums[C::kSumsByProduct ? 4 : 1];  // the accumulators of the ones
  float l[2] = {0, 0};                    // kSumsByProduct: the sums of the part
  float alpha[2] = {1, 1};  // what the part must be multiplied by, as references have moved
  bool has_part = false;
  bool taken = false;  // the accumulators were added to the part, and begin anew
  int blocks = 0;      // whose P was made since they began
  float scale = 1;     // of a score: those of Q and of K

  ATTN_DEVICE void begin() {
    l[0] = l[1] = 0;
    blocks = 1;
  }
};

// The part of a warp: 16 bytes of each lane, then the next.
template <class C>
struct Float8Parts {
  using Layout = ForwardSm90Layout<C>;
  unsigned warp;  // its place

  // How many accumulators 16 bytes have.
  static constexpr int kAtOnce = Layout::kHalfPart ? 8 : 4;
  static constexpr int kVectors = C::kHeadDimV / 2 / kAtOnce;
  ATTN_DEVICE unsigned place(int vector) const {
    return warp + static_cast<unsigned>(512 * vector + 16 * static_cast<int>(threadIdx.x % 32));
  }
  static ATTN_DEVICE void load(float (&part)[4], unsigned at) { load_shared_floats(part, at); }
  static ATTN_DEVICE void load(float (&part)[8], unsigned at) {
    const Int4 words = load_shared(at);
    const int all[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      part[2 * i] = __int_as_float(all[i] << 16);
      part[2 * i + 1] = __int_as_float(all[i] & static_cast<int>(0xffff0000));
    }
  }
  static ATTN_DEVICE void store(unsigned at, const float* o) {
    if constexpr (Layout::kHalfPart) {
      const auto word = [&](int i) {
        return static_cast<int>(BFloat16::pack(o[2 * i], o[2 * i + 1]));
      };
      store_shared(at, {word(0), word(1), word(2), word(3)});
    } else {
      store_shared_floats(at, o);
    }
  }
  // O <- O + part, with its sums of P.
  ATTN_DEVICE void merge(float (&o)[C::kHeadDimV / 2], Float8State<C>& state) const {
    if (state.has_part) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        float part[kAtOnce];
        load(part, place(i));
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          float& x = o[kAtOnce * i + j];
          x = fmaf(part[j], state.alpha[j / 2 % 2], x);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (C::kSumsByProduct) {
        state.l[i] = fmaf(state.l[i], state.alpha[i], state.sums[2 * i]);
      }
      state.alpha[i] = 1;
    }
    state.has_part = false;
  }
  // Part <- O + part.
  ATTN_DEVICE void take(float (&o)[C::kHeadDimV / 2], Float8State<C>& state) const {
    if constexpr (C::kStoresBoxes) {  // O of a tile before leaves from here
      if (elect_one()) bulk_wait_read();
      __syncwarp();
    }
    merge(o, state);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) store(place(i), o + kAtOnce * i);
    state.has_part = state.taken = true;
    state.blocks = 1;
  }
};

}  // namespace attn::device
