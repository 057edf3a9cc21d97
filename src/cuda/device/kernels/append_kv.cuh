// New rows of K and V go to their places in a cache, and rows of Q likewise to an output
// (attn/append_kv.hpp): norm, rotary embedding, Hadamard rotation, rounding. A warp takes some
// heads of a row one by one, whose numbers lie in shared memory meanwhile, and goes on with those a
// grid further.
//
// Grid: any number of blocks of kAppendThreads, kAppendRow floats of shared memory a warp.
#pragma once

#include "device.cuh"
#include "expr/trigonometry.cuh"
#include "kernels/append_kv_params.cuh"
#include "tile/cache_codes.cuh"
#include "tile/scalar.cuh"

namespace attn::device {

struct AppendPlace {
  bool written = false;  // the row is named at all
  long long sequence = 0, in_sequence = 0;
  long long block = -1, in_block = 0;  // of the caches; -1: K and V are not written
  long long rope_position = 0;
};

ATTN_DEVICE long long position_in(const AppendParams& p, const int* positions,
                                  const long long (&strides)[2], const AppendPlace& at,
                                  long long row) {
  if (p.cu_seqlens != nullptr) return positions[row * strides[0]];
  return positions[at.sequence * strides[0] + at.in_sequence * strides[1]];
}

ATTN_DEVICE AppendPlace append_place(const AppendParams& p, long long row) {
  AppendPlace at;
  long long length = p.seqlen;
  if (p.cu_seqlens != nullptr) {
    if (p.batch == 0 || row >= p.cu_seqlens[p.batch]) return at;
    int low = 0, high = p.batch;  // starts[low] <= row < starts[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (p.cu_seqlens[middle] <= row ? low : high) = middle;
    }
    at.sequence = low;
    at.in_sequence = row - p.cu_seqlens[low];
    length = p.cu_seqlens[low + 1] - p.cu_seqlens[low];
  } else {
    at.sequence = row / p.seqlen;
    at.in_sequence = row % p.seqlen;
  }
  long long position = 0;
  if (p.cache_seqlens != nullptr) {
    position = p.cache_seqlens[at.sequence * p.cache_seqlens_stride] + at.in_sequence;
  } else if (p.positions != nullptr) {
    position = position_in(p, p.positions, p.positions_strides, at, row);
  }
  if (position < 0) return at;
  at.rope_position = p.rope_positions == nullptr
                         ? position
                         : position_in(p, p.rope_positions, p.rope_positions_strides, at, row);
  if (p.has_tables && (at.rope_position < 0 || at.rope_position >= p.table_rows)) return at;
  at.written = true;
  // Of a prompt that is longer than a ring the last rows stay.
  const bool follows = p.cache_seqlens != nullptr;
  if (p.ring && follows && length - at.in_sequence > p.capacity) return at;
  if (!p.cached || p.capacity == 0) return at;
  if (p.ring) position %= p.capacity;
  if (position >= p.capacity) return at;
  at.in_block = position % p.block_rows;
  at.block = at.sequence;
  if (p.page_table != nullptr) {
    const int page = p.page_table[at.sequence * p.page_table_strides[0] +
                                  position / p.block_rows * p.page_table_strides[1]];
    at.block = page >= 0 && page < p.blocks ? page : -1;
  }
  return at;
}

ATTN_DEVICE float sum_of_warp(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}
ATTN_DEVICE float largest_of_warp(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

// Elements that are loaded or stored at once.
template <class Element, int kWide>
struct alignas(kWide * sizeof(typename Scalar<Element>::Storage)) AppendPacket {
  typename Scalar<Element>::Storage stored[kWide];
};

// One of Q, K and V. kWideFrom, kWideTo: elements of a packet; 1 where rows are aligned to no more.
template <class Source, int kWideFrom, int kWideTo, int kDim, bool kNorm, class Weight,
          bool kWeighted, int kRopeDim, bool kInterleaved, int kHadamard, CacheTarget kTarget,
          AppendScale kScale>
struct AppendPart {
  const AppendParams& p;
  const AppendPartParams& part;
  float* x;  // of the warp
  int lane;

  template <class Body>
  ATTN_DEVICE void for_each(Body body) const {
#pragma unroll
    for (int i = 0; i < kDim; i += 32) {
      if (i + lane < kDim) body(i + lane);
    }
  }

  ATTN_DEVICE void load(const AppendPlace& at, long long row, int head) const {
    const long long offset = p.cu_seqlens != nullptr
                                 ? row * part.from_row
                                 : at.sequence * part.from_block + at.in_sequence * part.from_row;
    const auto* from = reinterpret_cast<const AppendPacket<Source, kWideFrom>*>(
        element<Source>(part.from, offset + head * part.from_head));
#pragma unroll
    for (int i = lane; i < kDim / kWideFrom; i += 32) {
      const AppendPacket<Source, kWideFrom> packet = from[i];
#pragma unroll
      for (int j = 0; j < kWideFrom; ++j) {
        x[i * kWideFrom + j] = Scalar<Source>::from(packet.stored[j]);
      }
    }
    __syncwarp();
  }

  // Each thread has the same elements in all of these but the rotations.
  ATTN_DEVICE void norm() const {
    float squares = 0;
    for_each([&](int i) { squares += x[i] * x[i]; });
    const float mean = sum_of_warp(squares) / static_cast<float>(kDim);
    const float root = __fsqrt_rn(mean + p.norm_eps);
    for_each([&](int i) {
      x[i] = __fdiv_rn(x[i], root);
      if constexpr (kWeighted) {
        x[i] *= Scalar<Weight>::from(element<Weight>(part.weight, i)[0]);
      }
    });
  }

  ATTN_DEVICE void rotate(long long position) const {
    constexpr int kPairs = kRopeDim / 2;
    __syncwarp();
#pragma unroll
    for (int first = 0; first < kPairs; first += 32) {
      const int i = first + lane;
      if (i >= kPairs) break;
      float c, s;
      if (p.inv_freq != nullptr) {
        // The angle less whole turns, in double.
        const double angle = static_cast<double>(position) * static_cast<double>(p.inv_freq[i]);
        constexpr double kMagic = 0x1.8p52, kTurn = 0x1.921fb54442d18p+2;
        const double turns = (angle * (1 / kTurn) + kMagic) - kMagic;
        const auto rest = static_cast<float>(angle - turns * kTurn);
        c = cosine(rest);
        s = sine(rest);
      } else {
        c = p.cos[position * p.cos_stride + i];
        s = p.sin[position * p.sin_stride + i];
      }
      float& one = x[kInterleaved ? 2 * i : i];
      float& other = x[kInterleaved ? 2 * i + 1 : kPairs + i];
      const float a = one, b = other;
      one = a * c - b * s;
      other = a * s + b * c;
    }
    __syncwarp();
  }

  ATTN_DEVICE void hadamard() const {
    __syncwarp();
#pragma unroll
    for (int step = 1; step < kHadamard; step *= 2) {
#pragma unroll
      for (int first = 0; first < kDim / 2; first += 32) {
        const int i = first + lane;  // of the sums
        if (i >= kDim / 2) break;
        float& one = x[i / step * 2 * step + i % step];
        float& other = x[i / step * 2 * step + i % step + step];
        const float a = one, b = other;
        one = a + b;
        other = a - b;
      }
      __syncwarp();
    }
    const float factor = __fdiv_rn(1.f, __fsqrt_rn(static_cast<float>(kHadamard)));
    for_each([&](int i) { x[i] *= factor; });
  }

  static ATTN_DEVICE float divided(float value, float scale) {
    return scale == 0 ? 0.f : __fdiv_rn(value, scale);
  }

  template <class Element>
  ATTN_DEVICE void store_floats(long long offset) const {
    __syncwarp();
    auto* to = reinterpret_cast<AppendPacket<Element, kWideTo>*>(element<Element>(part.to, offset));
#pragma unroll
    for (int i = lane; i < kDim / kWideTo; i += 32) {
      AppendPacket<Element, kWideTo> packet;
#pragma unroll
      for (int j = 0; j < kWideTo; ++j) {
        packet.stored[j] = Scalar<Element>::to(x[i * kWideTo + j]);
      }
      to[i] = packet;
    }
  }

  ATTN_DEVICE void store_codes(const AppendPlace& at, int head, long long offset) const {
    float scale = 1;
    if constexpr (kScale == AppendScale::given) scale = part.scale[head * part.scale_head];
    if constexpr (kScale == AppendScale::chosen) {
      float largest = 0;
      for_each([&](int i) { largest = fmaxf(largest, fabsf(x[i])); });
      largest = largest_of_warp(largest);
      scale = largest == 0 ? 1.f : __fdiv_rn(largest, kLargestCode<kTarget>);
      if (lane == 0) {
        part.scale[at.block * part.scale_block + at.in_block * part.scale_row +
                   head * part.scale_head] = scale;
      }
    }
    auto* to = static_cast<unsigned char*>(part.to) + offset;
    for_each([&](int i) {
      const float y = divided(x[i], scale);
      to[i] = static_cast<unsigned char>(nearest_code<kTarget>(y));
    });
  }

  // Blocks of 32 elements, one a thread.
  ATTN_DEVICE void store_blocks(long long offset) const {
    constexpr bool kHalf = kTarget == CacheTarget::q4_0;
    constexpr int kBytes = kHalf ? 18 : 34;
    auto* block = static_cast<unsigned char*>(part.to) + offset;
    for (int i = 0; i < kDim; i += 32, block += kBytes) {
      const float value = x[i + lane];
      float largest = largest_of_warp(fabsf(value));
      if constexpr (kHalf) {  // with its sign; of two that are equal the first
        const unsigned who = __ballot_sync(~0u, fabsf(value) == largest);
        largest = __shfl_sync(~0u, value, who == 0 ? 0 : __ffs(static_cast<int>(who)) - 1);
      }
      const auto bits = Scalar<Float16>::to(__fdiv_rn(largest, kHalf ? -8.f : 127.f));
      const float scale = Scalar<Float16>::from(bits);
      if (lane == 0) {
        block[0] = static_cast<unsigned char>(bits & 0xff);
        block[1] = static_cast<unsigned char>(bits >> 8);
      }
      if constexpr (kHalf) {
        const int code = nearest_integer(divided(value, scale) + 8.f, 0, 15);
        const int upper = __shfl_xor_sync(~0u, code, 16);
        if (lane < 16) block[2 + lane] = static_cast<unsigned char>(code | upper << 4);
      } else {
        const int code = nearest_integer(divided(value, scale), -128, 127);
        block[2 + lane] = static_cast<unsigned char>(static_cast<unsigned>(code) & 0xffu);
      }
    }
  }

  ATTN_DEVICE void run(const AppendPlace& at, long long row, int head, bool in_cache) const {
    if (in_cache && at.block < 0) return;
    load(at, row, head);
    if constexpr (kNorm) norm();
    if constexpr (kRopeDim > 0) rotate(at.rope_position);
    if constexpr (kHadamard > 1) hadamard();
    const long long block = in_cache ? at.block : at.sequence;
    const long long in_block = in_cache ? at.in_block : at.in_sequence;
    const long long offset =
        (!in_cache && p.cu_seqlens != nullptr ? row * part.to_row
                                              : block * part.to_block + in_block * part.to_row) +
        head * part.to_head;
    if constexpr (kTarget == CacheTarget::f32) {
      store_floats<Float32>(offset);
    } else if constexpr (kTarget == CacheTarget::bf16) {
      store_floats<BFloat16>(offset);
    } else if constexpr (kTarget == CacheTarget::f16) {
      store_floats<Float16>(offset);
    } else if constexpr (kTarget == CacheTarget::e4m3 || kTarget == CacheTarget::e5m2 ||
                         kTarget == CacheTarget::i8) {
      store_codes(at, head, offset);
    } else {
      store_blocks(offset);
    }
    __syncwarp();  // the next row takes the same memory
  }
};

// Rows of the part that the head belongs to, Parts being those of p.part.
template <class Part, class... Parts>
ATTN_DEVICE void append_row(const AppendParams& p, int index, const AppendPlace& at, long long row,
                            int head, int cached_from, float* x) {
  const AppendPartParams& part = p.part[index];
  if (head < part.heads) {
    Part{p, part, x, static_cast<int>(threadIdx.x % 32)}.run(at, row, head, index >= cached_from);
  } else if constexpr (sizeof...(Parts) > 0) {
    append_row<Parts...>(p, index + 1, at, row, head - part.heads, cached_from, x);
  }
}

// cached_from: the first part that is K or V.
template <int kCachedFrom, class... Parts>
ATTN_DEVICE void append_kv(const AppendParams& p) {
  extern __shared__ __align__(16) char memory[];
  constexpr int kWarps = kAppendThreads / 32;
  const int warp = static_cast<int>(threadIdx.x / 32);
  float* const x = reinterpret_cast<float*>(memory) + warp * kAppendRow;
  const int groups = (p.heads + p.together - 1) / p.together;
  for (long long i = blockIdx.x * static_cast<long long>(kWarps) + warp; i < p.rows * groups;
       i += static_cast<long long>(gridDim.x) * kWarps) {
    const long long row = i / groups;
    const AppendPlace at = append_place(p, row);
    if (!at.written) continue;
    const int first = static_cast<int>(i % groups) * p.together;
    for (int head = first; head < first + p.together && head < p.heads; ++head) {
      append_row<Parts...>(p, 0, at, row, head, kCachedFrom, x);
    }
  }
}

}  // namespace attn::device
