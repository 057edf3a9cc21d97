// A warp's keys of a block where K or V is stored in a type of its own (tile/cache_type.cuh): rows
// are copied as they are, and become operands on their way from shared memory to registers.
//
// Sums do not depend on the order of columns, and O is put into the right one at the end, so that a
// thread takes neighbours of a row. With t = lane % 4 and g = lane / 4: of K it has columns
// [t kRunK, (t + 1) kRunK), four a step, of keys g and 8 + g; of V columns [g kRunV, (g + 1)
// kRunV), one a tile of 8, of keys 2 t, 2 t + 1, 2 t + 8, 2 t + 9.
#pragma once

#include "device.cuh"
#include "params.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"
#include "tile/cache_type.cuh"
#include "tile/shared_tile.cuh"

namespace attn::device {

// A column's product with neighbours: what a scale of blocks is loaded for.
template <class Cache, int kRun>
inline constexpr int kScaleRun = !Cache::kBlocked ? kRun
                                 : kRun % 32 == 0 ? 32
                                 : 32 % kRun == 0 ? kRun
                                                  : 4;

template <class C, int kKeys>
struct CachedKeys {
  using K = typename C::CacheK;
  using V = typename C::CacheV;
  using Element = typename C::Element;
  static constexpr int kRunK = C::kHeadDim / 4, kRunV = C::kHeadDimV / 8;
  static constexpr int kStepsK = C::kHeadDim / 16, kTilesV = C::kHeadDimV / 8;
  static_assert(C::kHeadDim % 16 == 0 && C::kHeadDimV % 32 == 0 && kKeys % 16 == 0);

  // Rows of 16-byte pieces are 16 bytes further apart, so that neighbours lie in different banks.
  static ATTN_DEVICE constexpr int pitch(int bytes) { return bytes % 16 == 0 ? bytes + 16 : bytes; }
  static constexpr int kRowK = K::row_bytes(C::kHeadDim), kRowV = V::row_bytes(C::kHeadDimV);
  static constexpr int kPitchK = pitch(kRowK), kPitchV = pitch(kRowV);
  // A stage: K, V, then the scales of Inputs of each key, those of K first.
  static constexpr int kVAt = (kKeys * kPitchK + 15) / 16 * 16;
  static constexpr int kScalesAt = kVAt + (kKeys * kPitchV + 15) / 16 * 16;
  static constexpr int kBytes = kScalesAt + (K::kScaled || V::kScaled ? 8 * kKeys : 0);

  // P times a scale may be past the range of f16, or lose digits below it, where elements times
  // their scale are not: then V is multiplied.
  static constexpr bool kScalesV = C::kScaledV && Element::kExponent == Float16::kExponent;
  static constexpr bool kScalesP = C::kScaledV && !kScalesV;

  static ATTN_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }

  // Asks a warp for the rows of K or V; source(row) gives the SourceRow. All lanes call it.
  template <int kRowBytes, class Source>
  static ATTN_DEVICE void copy(unsigned to, Source source) {
    constexpr int kPiece = power_of_two_in(kRowBytes, 16), kAcross = kRowBytes / kPiece;
    static_assert(kPiece >= 4);
    // As many pieces of a row as are a power of two, then the others of all rows.
    constexpr int kFirst = power_of_two_below(kAcross, 32), kRest = kAcross - kFirst;
    copy_pieces<kRowBytes, kPiece, kFirst, 0>(to, source);
    if constexpr (kRest > 0) copy_pieces<kRowBytes, kPiece, kRest, kFirst>(to, source);
  }
  // Pieces [kFrom, kFrom + kAcross) of each row.
  template <int kRowBytes, int kPiece, int kAcross, int kFrom, class Source>
  static ATTN_DEVICE void copy_pieces(unsigned to, Source source) {
    constexpr int kPieces = kKeys * kAcross;
#pragma unroll
    for (int first = 0; first < kPieces; first += 32) {
      const int piece = first + lane(), row = min(piece / kAcross, kKeys - 1);
      const int at = kPiece * (kFrom + piece % kAcross);
      const SourceRow from = source(row);
      if (kPieces % 32 == 0 || piece < kPieces) {
        copy_async_bytes<kPiece>(to + static_cast<unsigned>(row * pitch(kRowBytes) + at),
                                 from.data + at, from.exists);
      }
    }
  }
  // Scales of Inputs: source(row) gives the address of a float, likewise.
  template <class Source>
  static ATTN_DEVICE void copy_scales(unsigned to, Source source) {
    static_assert(kKeys <= 32);
    const SourceRow from = source(lane() % kKeys);
    if (lane() < kKeys) {
      copy_async_bytes<4>(to + static_cast<unsigned>(4 * lane()), from.data, from.exists);
    }
  }

  // Asks for K and V of the warp's keys, as they are stored, and for their scales of Inputs. k, v:
  // where rows of the sequence and head start.
  template <class Kernel, class Found>
  static ATTN_DEVICE void load(const Kernel& kernel, unsigned to, const char* k, const char* v,
                               int key0, const Found& found) {
    const auto& p = static_cast<const CachedForwardParams&>(kernel.p);
    copy<kRowK>(to, [&](int row) {
      return kernel.template source_row<K::kStorageBytes>(k, p.k_strides, key0, found, row);
    });
    copy<kRowV>(to + kVAt, [&](int row) {
      return kernel.template source_row<V::kStorageBytes>(v, p.v_strides, key0, found, row);
    });
    const auto load_scales = [&](int at, const float* scales, const Strides& strides) {
      const float* const first = scales + kernel.tile.first_key(strides, kernel.tile.key_head(p));
      copy_scales(to + static_cast<unsigned>(kScalesAt + at), [&](int row) {
        return kernel.template source_row<4>(reinterpret_cast<const char*>(first), strides, key0,
                                             found, row);
      });
    };
    if constexpr (C::kScaledK) load_scales(0, p.scale_k, p.scale_k_strides);
    if constexpr (C::kScaledV) load_scales(4 * kKeys, p.scale_v, p.scale_v_strides);
  }

  template <class Cache>
  static ATTN_DEVICE unsigned scaled(const BlockScales<Element>& scales, unsigned pair) {
    return Cache::kBlocked ? scales.times(pair) : pair;
  }

  // S <- Q K^T without scales of Inputs.
  template <int kTiles>
  static ATTN_DEVICE void multiply_qk(float (&s)[kTiles][kKeys / 2],
                                      const unsigned (&q)[kTiles][kStepsK][4], const char* stage) {
    constexpr int kScale = kScaleRun<K, kRunK>, kQuads = K::template kQuads<kRunK>;
    const int column = lane() % 4 * kRunK;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) s[m][i] = 0;
    }
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
      const char* const row = stage + (8 * j + lane() / 4) * kPitchK;
#pragma unroll
      for (int of_scale = 0; of_scale < kRunK; of_scale += kScale) {
        const unsigned bits = K::scale_bits(row, column + of_scale);
        const BlockScales<Element> scales(bits, bits);
#pragma unroll
        for (int first = 0; first < kScale; first += 4 * kQuads) {
          typename K::Quad quads[kQuads];
          K::load(quads, row, column + of_scale + first);
#pragma unroll
          for (int i = 0; i < kQuads; ++i) {
            const int step = (of_scale + first) / 4 + i;
            const typename K::Quad& x = quads[i];
            const unsigned k0 = scaled<K>(scales, K::template pair<Element, 0, 1>(x, x));
            const unsigned k1 = scaled<K>(scales, K::template pair<Element, 2, 3>(x, x));
#pragma unroll
            for (int m = 0; m < kTiles; ++m) multiply(Element{}, s[m] + 4 * j, q[m][step], k0, k1);
          }
        }
      }
    }
  }

  // The scales of Inputs in a stage: of K, and of V.
  static ATTN_DEVICE const float* scales_k(const char* stage) {
    return reinterpret_cast<const float*>(stage + kScalesAt);
  }
  static ATTN_DEVICE const float* scales_v(const char* stage) { return scales_k(stage) + kKeys; }
  // x <- x times the scale of its key, of 16 rows.
  static ATTN_DEVICE void multiply_scales(float (&x)[kKeys / 2], const float* scales) {
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float scale = cache_scale(scales[8 * j + 2 * (lane() % 4) + c]);
        x[4 * j + c] *= scale;
        x[4 * j + 2 + c] *= scale;
      }
    }
  }

  // O += P V, without scales of Inputs where kScalesP.
  template <int kTiles, int kRegisters>
  static ATTN_DEVICE void multiply_pv(float (&o)[kTiles][C::kHeadDimV / 2],
                                      const unsigned (&p16)[kTiles][kRegisters],
                                      const char* stage) {
    constexpr int kScale = kScaleRun<V, kRunV>, kQuads = V::template kQuads<kRunV>;
    const int column = lane() / 4 * kRunV;
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      const char* rows[4];
      float of_key[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = 16 * step + 2 * (lane() % 4) + i % 2 + i / 2 * 8;
        rows[i] = stage + kVAt + key * kPitchV;
        of_key[i] = kScalesV ? cache_scale(scales_v(stage)[key]) : 1.f;
      }
#pragma unroll
      for (int of_scale = 0; of_scale < kRunV; of_scale += kScale) {
        const int at = column + of_scale;
        const BlockScales<Element> scales[2] = {
            {V::scale_bits(rows[0], at), V::scale_bits(rows[1], at)},
            {V::scale_bits(rows[2], at), V::scale_bits(rows[3], at)}};
#pragma unroll
        for (int first = 0; first < kScale; first += 4 * kQuads) {
          typename V::Quad quads[4][kQuads];
#pragma unroll
          for (int i = 0; i < 4; ++i) V::load(quads[i], rows[i], at + first);
#pragma unroll
          for (int i = 0; i < kQuads; ++i) {
            const typename V::Quad of_keys[4] = {quads[0][i], quads[1][i], quads[2][i],
                                                 quads[3][i]};
            const auto multiply_tile = [&](unsigned v0, unsigned v1, int tile) {
              v0 = scaled<V>(scales[0], v0);
              v1 = scaled<V>(scales[1], v1);
              if constexpr (kScalesV) {
                v0 = times(v0, of_key[0], of_key[1]);
                v1 = times(v1, of_key[2], of_key[3]);
              }
#pragma unroll
              for (int m = 0; m < kTiles; ++m) {
                multiply(Element{}, o[m] + 4 * tile, &p16[m][4 * step], v0, v1);
              }
            };
            const int tile = of_scale + first + 4 * i;
            multiply_tile(two<0>(of_keys[0], of_keys[1]), two<0>(of_keys[2], of_keys[3]), tile);
            multiply_tile(two<1>(of_keys[0], of_keys[1]), two<1>(of_keys[2], of_keys[3]), tile + 1);
            multiply_tile(two<2>(of_keys[0], of_keys[1]), two<2>(of_keys[2], of_keys[3]), tile + 2);
            multiply_tile(two<3>(of_keys[0], of_keys[1]), two<3>(of_keys[2], of_keys[3]), tile + 3);
          }
        }
      }
    }
  }

 private:
  // Element kI of two keys.
  template <int kI>
  static ATTN_DEVICE unsigned two(const typename V::Quad& a, const typename V::Quad& b) {
    return V::template pair<Element, kI, kI>(a, b);
  }
  static ATTN_DEVICE unsigned times(unsigned pair, float low, float high) {
    return Element::pack(low_half<Element>(pair) * low, high_half<Element>(pair) * high);
  }
};

}  // namespace attn::device
