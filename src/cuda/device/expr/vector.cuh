// Elements of a buffer that a score reads for 32 keys of a row. In an accumulator a thread has two
// keys of every eight (tile/accumulator.cuh), and a warp has eight rows: an instruction that loads
// one element a thread touches eight rows of memory for 32 elements. Here a thread loads 16 bytes
// of a row, and the four threads of the row exchange words (transposed), or it loads its own pairs.
#pragma once

#include "device.cuh"
#include "expr/buffer.cuh"
#include "tile/transpose_quad.cuh"

namespace attn::device {

// Words from an address that is a multiple of their size together, 0 where it must not be read: one
// predicated load, as read_if.
#ifdef __CUDACC__
ATTN_DEVICE void read_words(bool inside, const void* from, unsigned (&to)[4]) {
  asm("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t"
      "mov.u32 %0, 0;\n\tmov.u32 %1, 0;\n\tmov.u32 %2, 0;\n\tmov.u32 %3, 0;\n\t"
      "@p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
      : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
      : "l"(from), "r"(static_cast<unsigned>(inside)));
}
ATTN_DEVICE void read_words(bool inside, const void* from, unsigned (&to)[2]) {
  asm("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %3, 0;\n\tmov.u32 %0, 0;\n\tmov.u32 %1, 0;\n\t"
      "@p ld.global.nc.v2.u32 {%0, %1}, [%2];\n\t}"
      : "=r"(to[0]), "=r"(to[1])
      : "l"(from), "r"(static_cast<unsigned>(inside)));
}
ATTN_DEVICE void read_words(bool inside, const void* from, unsigned (&to)[1]) {
  to[0] = static_cast<unsigned>(read_if(inside, static_cast<const int*>(from)));
}
#else
template <int kCount>
inline void read_words(bool inside, const void* from, unsigned (&to)[kCount]) {
  // A GPU takes no other address.
  if (inside && reinterpret_cast<unsigned long long>(from) % sizeof(to) != 0) __builtin_trap();
  __builtin_memset(to, 0, sizeof(to));
  if (inside) __builtin_memcpy(to, from, sizeof(to));
}
#endif

// Loads the words of a thread for the 32 keys from `key` on, a multiple of 8; elements outside the
// buffer are 0. Of the buffer's last dimension 8 elements may be read at once if kTransposed, and
// transpose_vector comes next; else 2 (elements_at_once in
// src/cuda/codegen/expression_buffers.hpp). index: all indices but the last, which is the key.
template <class Element, bool kTransposed, class... Index>
ATTN_DEVICE void load_vector(const BufferView& view, unsigned* words, int key, Index... index) {
  using Storage = typename Element::Storage;
  constexpr int kRank = sizeof...(Index), kBytes = static_cast<int>(sizeof(Storage));
  static_assert(kBytes == 2 || (kBytes == 4 && !kTransposed));
  constexpr int kAtOnce = kTransposed ? 8 : 2, kWords = kAtOnce * kBytes / 4;
  const int indices[kRank + 1] = {index..., 0};  // never empty
  bool inside = view.data != nullptr;
  long long bytes = 0;
#pragma unroll
  for (int d = 0; d < kRank; ++d) {
    inside = inside & (static_cast<unsigned>(indices[d]) <= view.last[d]);
    bytes += indices[d] * view.strides[d];
  }
  const int first = key + kAtOnce * static_cast<int>(threadIdx.x % 4);
  const auto* row = at_index(at_offset<Storage>(view.data, bytes), first);
#pragma unroll
  for (int read = 0; read < 8 / kAtOnce; ++read) {
    unsigned w[kWords];
    const auto at = static_cast<unsigned>(first + 8 * read);
    read_words(inside & (at <= view.last[kRank]), at_index(row, 8 * read), w);
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[kWords * read + i] = w[i];
  }
}

// Gives each thread what its keys need, in the order of vector_element. All threads of a warp call
// it.
ATTN_DEVICE void transpose_vector(unsigned* words) {
  unsigned w[4] = {words[0], words[1], words[2], words[3]};
  transpose_quad(w);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = w[i];
}

// The element of key 8 (i / 2) + 2 (lane % 4) + i % 2 of the 32. i: a constant.
template <class Element>
ATTN_DEVICE typename Element::Value vector_element(const unsigned* words, int i) {
  using Storage = typename Element::Storage;
  if constexpr (sizeof(Storage) == 2) {
    return Element::value(static_cast<Storage>(words[i / 2] >> 16 * (i % 2)));
  } else {
    return Element::value(__builtin_bit_cast(Storage, words[i]));
  }
}

}  // namespace attn::device
