// Shared memory by address, and barriers in it (PTX ISA, "mbarrier"): a phase completes when all
// expected arrivals and bytes came. Addresses are 32-bit shared-memory addresses of 8-byte words.
#pragma once

#include "device.cuh"

namespace attn::device {

ATTN_DEVICE unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

struct alignas(16) Int4 {
  int x, y, z, w;
};
ATTN_DEVICE void store_shared(unsigned address, const Int4& v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
ATTN_DEVICE Int4 load_shared(unsigned address) {
  Int4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
// The same of floats: as words, the compiler would not leave those of a warpgroup's product in
// their registers, and products would wait for each other.
ATTN_DEVICE void store_shared_floats(unsigned address, const float* x) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(x[0]), "f"(x[1]),
               "f"(x[2]), "f"(x[3])
               : "memory");
}
ATTN_DEVICE void load_shared_floats(float (&x)[4], unsigned address) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "r"(address)
               : "memory");
}
// Relaxed: of a word that one thread may store while another loads it.
ATTN_DEVICE int load_shared_relaxed(unsigned address) {
  int x;
  asm volatile("ld.relaxed.cta.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
ATTN_DEVICE int load_shared_word(unsigned address) {
  int x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
ATTN_DEVICE void store_shared_word(unsigned address, unsigned x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
ATTN_DEVICE void store_shared_relaxed(unsigned address, unsigned x) {
  asm volatile("st.relaxed.cta.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
ATTN_DEVICE void store_shared_byte(unsigned address, unsigned x) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
ATTN_DEVICE unsigned load_shared_byte(unsigned address) {
  unsigned x;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}

ATTN_DEVICE void mbarrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

// Makes initialised barriers visible to the copy engine; a block-wide barrier must follow.
ATTN_DEVICE void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

ATTN_DEVICE void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives and adds to the bytes that the phase waits for.
ATTN_DEVICE void mbarrier_arrive_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(bytes)
               : "memory");
}

// Whether the phase of the given parity is over. Asked early, the answer costs no time later.
ATTN_DEVICE bool mbarrier_try(unsigned barrier, unsigned parity) {
  unsigned done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 done, [%1], %2;\n"
      "selp.b32 %0, 1, 0, done;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// Asks until the phase of parity %1 at barrier %0 is over.
#define ATTN_MBARRIER_WAIT                                                 \
  "again:\n"                                                               \
  "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n" \
  "@done bra over;\n"                                                      \
  "bra again;\n"                                                           \
  "over:\n"

// Returns once the phase of the given parity is over.
ATTN_DEVICE void mbarrier_wait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n" ATTN_MBARRIER_WAIT "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Waits as mbarrier_wait does, unless `over` says that the phase is known to be over.
ATTN_DEVICE void mbarrier_wait_unless(bool over, unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "setp.ne.u32 done, %2, 0;\n"
      "@done bra over;\n" ATTN_MBARRIER_WAIT "}" ::"r"(barrier),
      "r"(parity), "r"(over ? 1u : 0u)
      : "memory");
}

#undef ATTN_MBARRIER_WAIT

}  // namespace attn::device
