// What tile instructions of AMX cost beside each other, in units of one product (TDPBF16PS, 16
// cycles): the table of docs/log/cpu-amx.md. Fastest tenth of 300 turns of each loop; needs a CPU
// with AMX.
//   g++ -std=c++20 -O2 -DATTN_STATIC -Iinclude -Isrc -mavx512f -mavx512bw -mavx512dq -mavx512vl
//   -mavx512bf16 -mamx-tile -mamx-bf16 -mfma bench/cpu/amx_tiles.cpp build/libattn.a -lfmt
//   -lpthread -ldl -o amx_tiles
#include <x86intrin.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "attn/attn.hpp"
#define ATTN_ISA amx_tiles
#define ATTN_VECTOR_BYTES 64
#include "cpu/kernels/amx.hpp"

using namespace attn::cpu::amx_tiles;

namespace {

constexpr std::size_t kL2 = std::size_t{1} << 19;  // bytes that L1 does not hold and L2 does
constexpr std::size_t kMemory = 2 * kL2;
alignas(4096) std::byte memory[kMemory];

template <class Loop>
double ticks(const Loop& loop) {
  std::vector<double> turns;
  for (int turn = 0; turn < 300; ++turn) {
    const auto start = __rdtsc();
    for (int i = 0; i < 100; ++i) loop();
    turns.push_back(static_cast<double>(__rdtsc() - start) / 100);
  }
  std::sort(turns.begin(), turns.end());
  return turns[turns.size() / 10];
}

std::byte* tile(int i) { return memory + 1024 * i; }
std::byte* anywhere() {
  static std::uint32_t state = 1;
  state = state * 1664525u + 1013904223u;
  return memory + (state >> 8) % kL2 / 1024 * 1024;
}

void product_chain() {
  for (int i = 0; i < 16; ++i) add_product<0, 4, 6>();
}
template <bool kL1, int kRowBytes>
void loads() {
  for (int i = 0; i < 16; ++i) load_tile<4>(kL1 ? tile(i) : anywhere(), kRowBytes);
}
template <bool kL1>
void stores() {
  for (int i = 0; i < 16; ++i) store_tile<0>(kL1 ? tile(i) : anywhere(), 64);
}
// Two halves of four sums over two steps; their stores at the end of a half, or where the next
// begins.
template <bool kLate>
void halves() {
  for (int half = 0; half < 2; ++half) {
    float* const sums = reinterpret_cast<float*>(tile(64 + 4 * half));
    for (int step = 0; step < 2; ++step) {
      load_tile<4>(tile(8 * half + 4 * step), 64);
      load_tile<6>(tile(8 * half + 4 * step + 1), 64);
      load_tile<5>(tile(8 * half + 4 * step + 2), 64);
      load_tile<7>(tile(8 * half + 4 * step + 3), 64);
      const auto begin = [&]<int kTile, int kA, int kB> {
        if (kLate) store_tile<kTile>(tile(64 + 4 * half + kTile), 64);
        zero_tile<kTile>();
        add_product<kTile, kA, kB>();
      };
      if (step == 0) {
        begin.template operator()<0, 4, 6>();
        begin.template operator()<1, 4, 7>();
        begin.template operator()<2, 5, 6>();
        begin.template operator()<3, 5, 7>();
      } else {
        add_four_products();
      }
    }
    if (!kLate) store_sums(sums, kRows);
  }
}

}  // namespace

int main() {
  for (const attn::InstructionSetInfo& info : attn::instruction_sets()) {
    if (info.isa == attn::InstructionSet::amx_bf16 && !info.available) {
      std::printf("amx_bf16 is not available: %s\n", info.reason.c_str());
      return 1;
    }
  }
  std::fill_n(memory, kMemory, std::byte{1});  // pages that nobody wrote are one page
  configure_tiles();
  ticks(product_chain);  // until the clock has settled
  const double product = ticks(product_chain) / 16;
  const auto row = [&](const char* what, auto loop) {
    std::printf("%-60s %6.1f\n", what, ticks(loop) / product);
  };
  row("16 products into one tile", product_chain);
  row("16 products into four", [] {
    for (int i = 0; i < 4; ++i) add_four_products();
  });
  row("16 loads from L2, 2 products after each", [] {
    for (int i = 0; i < 16; ++i) {
      load_tile<4>(anywhere(), 64);
      add_product<0, 4, 6>();
      add_product<1, 4, 7>();
    }
  });
  row("16 loads: L1", loads<true, 64>);
  row("16 loads: L2, 1 KB in one piece", loads<false, 64>);
  row("16 loads: L2, rows 128 bytes apart", loads<false, 128>);
  row("16 loads: L2, rows 256 bytes apart", loads<false, 256>);
  row("16 stores: L1", stores<true>);
  row("16 stores: L2", stores<false>);
  row("8 times: zero, two products, store", [] {
    for (int i = 0; i < 8; ++i) {
      zero_tile<0>();
      add_product<0, 4, 6>();
      add_product<0, 5, 7>();
      store_tile<0>(tile(i), 64);
    }
  });
  row("16 products, 16 loads, 8 stores at the ends of halves", halves<false>);
  row("the same, each store where the next sum begins", halves<true>);
  release_tiles();
}
