// A row of floating numbers in the registers of some lanes of a warp, on its way to a cache:
// Hadamard rotation, scale, rounding.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "tile/cache_codes.cuh"
#include "tile/scalar.cuh"

namespace attn::device {

// Stands for the scale of rows of which all so far are zeros; if it stays so, their scale is 1. The
// bits of it are, as an integer, less than those of every scale.
ATTN_DEVICE float no_scale() { return -1; }

template <class Element, int kWide>
struct alignas(kWide * sizeof(typename Scalar<Element>::Storage)) RowPacket {
  typename Scalar<Element>::Storage stored[kWide];
};

// kWide: columns that are loaded and, but for blocks, stored at once; 1 where addresses do not
// allow more. kLanes: lanes of a warp that share a row, a power of two. kHadamard: 0, or the size
// of the blocks of a rotation.
template <class Source, CacheTarget kTarget, int kDim, int kWide_, int kLanes_, int kHadamard>
struct CachedRow {
  using From = Source;
  static constexpr int kWide = kWide_, kLanes = kLanes_;
  static constexpr bool kRotates = kHadamard > 0;
  static constexpr int kAcross = kLanes * kWide;  // columns of a packet of each lane
  static constexpr int kPackets = divide_up<kAcross>(kDim);
  static constexpr bool kScaled =
      kTarget == CacheTarget::e4m3 || kTarget == CacheTarget::e5m2 || kTarget == CacheTarget::i8;

  struct Loaded {
    RowPacket<Source, kWide> packet[kPackets];
  };

  const int lane;        // of those that have the row
  unsigned negated = 0;  // a bit for each number of x: those that a rotation negates first
  float x[kPackets][kWide];

  explicit ATTN_DEVICE CachedRow(int this_lane) : lane(this_lane) {}
  // Says which columns a rotation negates first: a bit for each.
  ATTN_DEVICE void negate(const unsigned* columns) {
    for_each([&](int i, int k) {
      const int c = column(i) + k;
      negated |= (columns[c / 32] >> c % 32 & 1u) << (i * kWide + k);
    });
  }
  ATTN_DEVICE int column(int packet) const { return kAcross * packet + kWide * lane; }
  ATTN_DEVICE bool inside(int packet) const { return kDim % kAcross == 0 || column(packet) < kDim; }
  template <class Body>
  ATTN_DEVICE void for_each(const Body& body) const {
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      if (!inside(i)) continue;
#pragma unroll
      for (int k = 0; k < kWide; ++k) body(i, k);
    }
  }

  ATTN_DEVICE Loaded load(const typename Scalar<Source>::Storage* from) const {
    Loaded loaded{};
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      if (!inside(i)) continue;
      loaded.packet[i] = *reinterpret_cast<const RowPacket<Source, kWide>*>(from + column(i));
    }
    return loaded;
  }
  ATTN_DEVICE void take(const Loaded& loaded) {
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
#pragma unroll
      for (int k = 0; k < kWide; ++k) x[i][k] = Scalar<Source>::from(loaded.packet[i].stored[k]);
    }
  }

  // x <- H D x: neighbours within a packet, then in other lanes, then in other packets.
  ATTN_DEVICE void rotate() {
    for_each([&](int i, int k) {
      if ((negated >> (i * kWide + k) & 1u) != 0) x[i][k] = -x[i][k];
    });
#pragma unroll
    for (int step = 1; step < kHadamard; step *= 2) {
#pragma unroll
      for (int i = 0; i < kPackets; ++i) {
#pragma unroll
        for (int k = 0; k < kWide; ++k) {
          if (step >= kWide && step < kAcross) {
            const int other = step / kWide;
            const float y = __shfl_xor_sync(~0u, x[i][k], other);
            x[i][k] = (lane & other) != 0 ? y - x[i][k] : x[i][k] + y;
          } else if (((step < kWide ? k & step : i & step / kAcross)) == 0) {
            float& one = x[i][k];
            float& two = step < kWide ? x[i][k + step] : x[i + step / kAcross][k];
            const float a = one, b = two;
            one = a + b;
            two = a - b;
          }
        }
      }
    }
    const float factor = __fdiv_rn(1.f, __fsqrt_rn(static_cast<float>(kHadamard)));
    for_each([&](int i, int k) { x[i][k] *= factor; });
  }

  // The scale of this row alone; no_scale() of zeros.
  ATTN_DEVICE float own_scale() const {
    float largest = 0;
    for_each([&](int i, int k) { largest = fmaxf(largest, fabsf(x[i][k])); });
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    }
    return largest == 0 ? no_scale() : __fdiv_rn(largest, kLargestCode<kTarget>);
  }

  // Writes the row to `offset` elements from `to`. All lanes of the warp call it, as they exchange
  // numbers; those with `is_row` false have no row and write nothing.
  ATTN_DEVICE void store(void* to, long long offset, float scale, bool is_row) const {
    if constexpr (kTarget == CacheTarget::f32) {
      store_floats<Float32>(element<Float32>(to, offset), is_row);
    } else if constexpr (kTarget == CacheTarget::bf16) {
      store_floats<BFloat16>(element<BFloat16>(to, offset), is_row);
    } else if constexpr (kTarget == CacheTarget::f16) {
      store_floats<Float16>(element<Float16>(to, offset), is_row);
    } else if constexpr (kScaled) {
      store_codes(static_cast<unsigned char*>(to) + offset, scale, is_row);
    } else {
      store_blocks(static_cast<unsigned char*>(to) + offset, is_row);
    }
  }

 private:
  template <class Element>
  ATTN_DEVICE void store_floats(typename Scalar<Element>::Storage* to, bool is_row) const {
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      if (!inside(i) || !is_row) continue;
      RowPacket<Element, kWide> packet;
#pragma unroll
      for (int k = 0; k < kWide; ++k) packet.stored[k] = Scalar<Element>::to(x[i][k]);
      *reinterpret_cast<RowPacket<Element, kWide>*>(to + column(i)) = packet;
    }
  }

  ATTN_DEVICE void store_codes(unsigned char* to, float scale, bool is_row) const {
    const ScaleDivisor divided(scale);
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      if (!inside(i) || !is_row) continue;
      if constexpr (kWide == 1) {
        to[column(i)] = static_cast<unsigned char>(nearest_code<kTarget>(divided(x[i][0])));
      } else {
        struct alignas(kWide) Codes {
          unsigned four[kWide / 4];
        } codes;
#pragma unroll
        for (int k = 0; k < kWide; k += 4) {
          codes.four[k / 4] = four_codes<kTarget>(divided, x[i] + k);
        }
        *reinterpret_cast<Codes*>(to + column(i)) = codes;
      }
    }
  }

  // Blocks of 32 columns, which lie in kLanesOfBlock lanes.
  ATTN_DEVICE void store_blocks(unsigned char* to, bool is_row) const {
    constexpr bool kFour = kTarget == CacheTarget::q4_0;
    constexpr int kLanesOfBlock = 32 / kWide, kBytes = kFour ? 18 : 34;
    const int in_block = lane % kLanesOfBlock;
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      // Of q4_0 the number of largest magnitude with its sign, of several the first.
      float largest = 0;
#pragma unroll
      for (int k = 0; k < kWide; ++k) {
        if (fabsf(x[i][k]) > fabsf(largest)) largest = x[i][k];
      }
#pragma unroll
      for (int step = 1; step < kLanesOfBlock; step *= 2) {
        const float other = __shfl_xor_sync(~0u, largest, step);
        const bool first = (lane & step) != 0 && fabsf(other) == fabsf(largest);
        if (first || fabsf(other) > fabsf(largest)) largest = other;
      }
      const auto bits =
          Scalar<Float16>::to(kFour ? __fdiv_rn(largest, -8.f) : __fdiv_rn(fabsf(largest), 127.f));
      const ScaleDivisor divided(Scalar<Float16>::from(bits));
      auto* const block = to + column(i) / 32 * kBytes;
      const bool even = (reinterpret_cast<unsigned long long>(block) & 1) == 0;
      const bool stores = inside(i) && is_row;
      if (stores && in_block == 0) store_pair(block, bits, even);
      auto* const mine = block + 2 + kWide * in_block;
      if constexpr (kFour) {
        unsigned codes[kWide];
#pragma unroll
        for (int k = 0; k < kWide; ++k) {
          // Ties to even of y + 8, as 8 is even.
          const int code = nearest_integer(divided(x[i][k]), -8, 7) + 8;
          const int upper = __shfl_xor_sync(~0u, code, 16 / kWide);
          codes[k] = static_cast<unsigned>(code | upper << 4) & 0xffu;
        }
        if (stores && in_block < kLanesOfBlock / 2) store_bytes(mine, codes, even);
      } else if constexpr (kWide == 1) {
        if (stores) {
          mine[0] = static_cast<unsigned char>(nearest_code<CacheTarget::i8>(divided(x[i][0])));
        }
      } else if (stores) {
#pragma unroll
        for (int k = 0; k < kWide; k += 4) {
          const unsigned codes = four_codes<CacheTarget::i8>(divided, x[i] + k);
          store_pair(mine + k, codes & 0xffffu, even);
          store_pair(mine + k + 2, codes >> 16, even);
        }
      }
    }
  }
  static ATTN_DEVICE void store_bytes(unsigned char* to, const unsigned (&bytes)[kWide],
                                      bool even) {
    if constexpr (kWide == 1) {
      to[0] = static_cast<unsigned char>(bytes[0]);
    } else {
#pragma unroll
      for (int k = 0; k < kWide; k += 2) store_pair(to + k, bytes[k] | bytes[k + 1] << 8, even);
    }
  }
  // Two bytes, the lower first.
  static ATTN_DEVICE void store_pair(unsigned char* to, unsigned pair, bool even) {
    if (even) {
      *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(pair);
    } else {
      to[0] = static_cast<unsigned char>(pair & 0xffu);
      to[1] = static_cast<unsigned char>(pair >> 8 & 0xffu);
    }
  }
};

}  // namespace attn::device
