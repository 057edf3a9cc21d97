// Rows of floating numbers become those of caches (attn::quantize): rotation, scale, rounding. A
// warp has a row in registers, and goes on with the rows behind it.
//
// Rows that share a scale take three launches: clear_scales; find_scales, which leaves the largest
// scale of the rows in the first one's place; quantize.
// Grid: blocks of kQuantizeThreads, a warp for each `rows_together` rows; of clear_scales a thread.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "kernels/quantize_params.cuh"
#include "tile/cache_codes.cuh"
#include "tile/scalar.cuh"

namespace attn::device {

// A row's number along each axis, and where it lies, in elements.
struct QuantizedRow {
  long long index[kQuantizeAxes];
  long long x, to, scale;

  ATTN_DEVICE QuantizedRow(const QuantizeParams& p, long long row) {
#pragma unroll
    for (int axis = 0; axis < kQuantizeAxes; ++axis) {
      index[axis] = row % p.sizes[axis];
      row /= p.sizes[axis];
    }
    find(p);
  }
  ATTN_DEVICE void next(const QuantizeParams& p) {
    x += p.x_strides[0];
    to += p.to_strides[0];
    scale += p.scale_strides[0];
    if (++index[0] < p.sizes[0]) return;
    index[0] = 0;
#pragma unroll
    for (int axis = 1; axis < kQuantizeAxes; ++axis) {
      if (++index[axis] < p.sizes[axis]) break;
      index[axis] = 0;
    }
    find(p);
  }
  ATTN_DEVICE void find(const QuantizeParams& p) {
    x = to = scale = 0;
#pragma unroll
    for (int axis = 0; axis < kQuantizeAxes; ++axis) {
      x += index[axis] * p.x_strides[axis];
      to += index[axis] * p.to_strides[axis];
      scale += index[axis] * p.scale_strides[axis];
    }
  }
  // The scale of the first row of its block stands for all.
  ATTN_DEVICE float* shared_scale(const QuantizeParams& p) const {
    const long long in_block = p.block == 1 ? 0 : index[0] % p.block;
    return p.scale + scale - in_block * p.scale_strides[0];
  }
};

// No row but rows of zeros has a scale yet, which is 1 in the end. As an integer it is less than
// every scale.
ATTN_DEVICE float no_scale() { return -1; }

template <class Element, int kWide>
struct alignas(kWide * sizeof(typename Scalar<Element>::Storage)) QuantizePacket {
  typename Scalar<Element>::Storage stored[kWide];
};

// kWide: columns that are loaded and, but for blocks, stored at once; 1 where addresses do not
// allow 4. kHadamard: 0, or the size of the blocks of a rotation.
template <class Source, CacheTarget kTarget, int kDim, int kWide, int kHadamard>
struct Quantize {
  static constexpr int kAcross = 32 * kWide;  // columns of a packet of each lane
  static constexpr int kPackets = divide_up<kAcross>(kDim);
  static constexpr bool kScaled =
      kTarget == CacheTarget::e4m3 || kTarget == CacheTarget::e5m2 || kTarget == CacheTarget::i8;

  const QuantizeParams& p;
  const int lane;
  unsigned negated = 0;  // a bit for each number of x
  float x[kPackets][kWide];

  ATTN_DEVICE Quantize(const QuantizeParams& params, int this_lane) : p(params), lane(this_lane) {
    if constexpr (kHadamard > 0) {
      for_each([&](int i, int k) {
        const int c = column(i) + k;
        negated |= (p.negated[c / 32] >> c % 32 & 1u) << (i * kWide + k);
      });
    }
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

  ATTN_DEVICE void load(const QuantizedRow& row) {
    const auto* const from = element<Source>(p.x, row.x);
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      QuantizePacket<Source, kWide> packet{};
      if (inside(i)) {
        packet = *reinterpret_cast<const QuantizePacket<Source, kWide>*>(from + column(i));
      }
#pragma unroll
      for (int k = 0; k < kWide; ++k) x[i][k] = Scalar<Source>::from(packet.stored[k]);
    }
    if constexpr (kHadamard > 0) rotate();
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
    // Bits of positive numbers grow with them.
    largest = __int_as_float(__reduce_max_sync(~0u, __float_as_int(largest)));
    return largest == 0 ? no_scale() : __fdiv_rn(largest, kLargestCode<kTarget>);
  }

  template <class Element>
  ATTN_DEVICE void store_floats(long long offset) const {
    auto* const to = element<Element>(p.to, offset);
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      if (!inside(i)) continue;
      QuantizePacket<Element, kWide> packet;
#pragma unroll
      for (int k = 0; k < kWide; ++k) packet.stored[k] = Scalar<Element>::to(x[i][k]);
      *reinterpret_cast<QuantizePacket<Element, kWide>*>(to + column(i)) = packet;
    }
  }

  ATTN_DEVICE void store_codes(long long offset, float scale) const {
    struct alignas(kWide) Codes {
      unsigned char code[kWide];
    };
    auto* const to = static_cast<unsigned char*>(p.to) + offset;
    const Divisor divided(scale);
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      if (!inside(i)) continue;
      Codes codes;
#pragma unroll
      for (int k = 0; k < kWide; ++k) {
        codes.code[k] = static_cast<unsigned char>(nearest_code<kTarget>(divided(x[i][k])));
      }
      *reinterpret_cast<Codes*>(to + column(i)) = codes;
    }
  }

  // Blocks of 32 columns, which lie in kLanes lanes.
  ATTN_DEVICE void store_blocks(long long offset) const {
    constexpr bool kFour = kTarget == CacheTarget::q4_0;
    constexpr int kLanes = 32 / kWide, kBytes = kFour ? 18 : 34;
    const int in_block = lane % kLanes;
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      // Of q4_0 the number of largest magnitude with its sign, of several the first.
      float largest = 0;
#pragma unroll
      for (int k = 0; k < kWide; ++k) {
        if (fabsf(x[i][k]) > fabsf(largest)) largest = x[i][k];
      }
#pragma unroll
      for (int step = 1; step < kLanes; step *= 2) {
        const float other = __shfl_xor_sync(~0u, largest, step);
        const bool first = (lane & step) != 0 && fabsf(other) == fabsf(largest);
        if (first || fabsf(other) > fabsf(largest)) largest = other;
      }
      const auto bits =
          Scalar<Float16>::to(kFour ? __fdiv_rn(largest, -8.f) : __fdiv_rn(fabsf(largest), 127.f));
      const Divisor divided(Scalar<Float16>::from(bits));
      auto* const block = static_cast<unsigned char*>(p.to) + offset + column(i) / 32 * kBytes;
      if (inside(i) && in_block == 0) {
        block[0] = static_cast<unsigned char>(bits & 0xff);
        block[1] = static_cast<unsigned char>(bits >> 8);
      }
#pragma unroll
      for (int k = 0; k < kWide; ++k) {
        const float y = divided(x[i][k]);
        // Ties to even of y + 8, as 8 is even.
        const int code = kFour ? nearest_integer(y, -8, 7) + 8 : nearest_integer(y, -128, 127);
        const int upper = kFour ? __shfl_xor_sync(~0u, code, 16 / kWide) : 0;
        if (!inside(i) || (kFour && in_block >= kLanes / 2)) continue;
        block[2 + kWide * in_block + k] = static_cast<unsigned char>((code | upper << 4) & 0xff);
      }
    }
  }

  template <QuantizeScale kScale>
  ATTN_DEVICE void store(const QuantizedRow& row) const {
    float scale = 1;
    if constexpr (kScale != QuantizeScale::none) {
      scale = kScale == QuantizeScale::row ? own_scale() : *row.shared_scale(p);
      if (scale == no_scale()) scale = 1;
      if (lane == 0) p.scale[row.scale] = scale;
    }
    if constexpr (kTarget == CacheTarget::f32) {
      store_floats<Float32>(row.to);
    } else if constexpr (kTarget == CacheTarget::bf16) {
      store_floats<BFloat16>(row.to);
    } else if constexpr (kTarget == CacheTarget::f16) {
      store_floats<Float16>(row.to);
    } else if constexpr (kScaled) {
      store_codes(row.to, scale);
    } else {
      store_blocks(row.to);
    }
  }
};

// The rows of this warp, one after the other.
template <class Body>
ATTN_DEVICE void for_rows_of_warp(const QuantizeParams& p, const Body& body) {
  constexpr int kWarps = kQuantizeThreads / 32;
  const long long warp = blockIdx.x * static_cast<long long>(kWarps) + threadIdx.x / 32;
  const long long first = warp * p.rows_together;
  const long long end = min(first + p.rows_together, p.rows);
  if (first >= end) return;
  QuantizedRow row(p, first);
  for (long long i = first; i < end; ++i, row.next(p)) body(row);
}

template <class Rows, QuantizeScale kScale>
ATTN_DEVICE void quantize(const QuantizeParams& p) {
  Rows rows(p, static_cast<int>(threadIdx.x % 32));
  for_rows_of_warp(p, [&](const QuantizedRow& row) {
    rows.load(row);
    rows.template store<kScale>(row);
  });
}

// Rows that share a scale lie behind each other, so that a warp writes few times.
template <class Rows>
ATTN_DEVICE void find_scales(const QuantizeParams& p) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  Rows rows(p, lane);
  float* place = nullptr;
  float largest = no_scale();
  const auto write = [&] {
    // Scales only grow, so that one that is not larger than what is there need not be written.
    auto* const bits = reinterpret_cast<int*>(place);
    const int mine = __float_as_int(largest);
    if (lane == 0 && place != nullptr && mine > *static_cast<volatile int*>(bits)) {
      atomicMax(bits, mine);
    }
  };
  for_rows_of_warp(p, [&](const QuantizedRow& row) {
    rows.load(row);
    const float scale = rows.own_scale();
    float* const its_place = row.shared_scale(p);
    if (its_place != place) {
      write();
      place = its_place;
      largest = no_scale();
    }
    largest = fmaxf(largest, scale);
  });
  write();
}

ATTN_DEVICE void clear_scales(const QuantizeParams& p) {
  const long long row = blockIdx.x * static_cast<long long>(kQuantizeThreads) + threadIdx.x;
  if (row < p.rows) *QuantizedRow(p, row).shared_scale(p) = no_scale();
}

}  // namespace attn::device
