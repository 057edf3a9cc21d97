// FlashAttention's forward pass in the order of its algorithm 1 (K, V outer) with any B_c that is a
// multiple of 64, for the middle panel of figure 2: time against block size. Written with the tile
// verbs of the CPU backend; CPU time; B_r is what they take. A K, V block is packed whole, then
// each Q block has its O, l and m loaded, goes through the block in tiles of 64 keys, and is
// stored. One thread, f32, d and n multiples of 64. Each time is of a result that was compared with
// fp64.
//   flash_blocks N HEADS D REPEATS B_C...      one line a block size: "B_c seconds error"
//   g++ -std=c++20 -O2 -Iinclude -Isrc bench/papers/flash_blocks.cpp build/libattn.a -lfmt
//   -lpthread -ldl -o flash_blocks
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <random>
#include <vector>

#include "attn/attn.hpp"
#include "cpu/attention.hpp"
#include "cpu/workspace.hpp"

namespace {

using attn::cpu::AlignedBytes;

// Aligned floats, for the calls that ask for it.
struct Floats {
  explicit Floats(std::size_t count)
      : memory(attn::cpu::allocate(attn::core::Size(count * sizeof(float)))) {
    std::fill_n(data(), count, 0.0F);
  }
  float* data() const { return reinterpret_cast<float*>(memory.get()); }
  AlignedBytes memory;
};

// Heads one after the other, each [n][d], contiguous.
struct Problem {
  int n, heads, d;
  std::vector<float> q, k, v, o;
};

// One head.
void attend(const attn::cpu::TileOps& ops, Problem& p, int head, int block_k) {
  const int rows = ops.rows, d = p.d, ld = attn::cpu::leading_dim(d);
  const std::size_t base = static_cast<std::size_t>(head) * p.n * d;
  const float c = attn::cpu::kLog2e;
  const int blocks = p.n / rows;
  Floats k_block(static_cast<std::size_t>(block_k) * ld),
      v_block(static_cast<std::size_t>(block_k) * ld);
  Floats q_t(static_cast<std::size_t>(d + 1) * attn::cpu::kMaxRows);
  Floats o_t(static_cast<std::size_t>(p.n) * d);  // "HBM": O^T of every Q block, and its m and l
  Floats m(p.n), l(p.n), s(64 * attn::cpu::kMaxRows);
  std::fill_n(m.data(), p.n, attn::cpu::kMaximumStart);
  const auto row_of = [&](std::vector<float>& x, int i) {
    return reinterpret_cast<std::byte*>(x.data() + base + static_cast<std::size_t>(i) * d);
  };
  for (int j = 0; j < p.n; j += block_k) {
    const std::byte* row[64];
    const int keys = std::min(block_k, p.n - j);
    for (int t = 0; t < keys; t += 64) {
      for (int i = 0; i < 64; ++i) row[i] = row_of(p.k, j + t + i);
      ops.pack_k(row, 64, d, attn::DType::f32, k_block.data() + static_cast<std::size_t>(t) * ld);
      for (int i = 0; i < 64; ++i) row[i] = row_of(p.v, j + t + i);
      ops.pack_v(row, 64, d, attn::DType::f32, v_block.data() + static_cast<std::size_t>(t) * ld);
    }
    for (int i = 0; i < blocks; ++i) {
      for (int r = 0; r < rows; ++r) row[r] = row_of(p.q, i * rows + r);
      ops.pack_q(row, rows, d, attn::DType::f32, 1.0F / std::sqrt(static_cast<float>(d)),
                 q_t.data());
      float* o = o_t.data() + static_cast<std::size_t>(i) * rows * d;
      alignas(64) float row_max[attn::cpu::kMaxRows], alpha[attn::cpu::kMaxRows];
      for (int t = 0; t < keys; t += 64) {
        const attn::cpu::ScoreTile tile{q_t.data(), s.data(), row_max};
        ops.scores(&tile, 1, k_block.data() + static_cast<std::size_t>(t) * ld, 64, d);
        ops.softmax(s.data(), 64, c, row_max, nullptr, m.data() + i * rows, l.data() + i * rows,
                    alpha, s.data());
        const attn::cpu::OutputTile output{s.data(), alpha, o};
        ops.accumulate(&output, 1, v_block.data() + static_cast<std::size_t>(t) * ld, 64, d);
      }
    }
  }
  for (int i = 0; i < blocks; ++i) {
    float factor[attn::cpu::kMaxRows];
    std::byte* row[attn::cpu::kMaxRows];
    for (int r = 0; r < rows; ++r) {
      factor[r] = 1 / l.data()[i * rows + r];
      row[r] = row_of(p.o, i * rows + r);
    }
    ops.unpack_o(o_t.data() + static_cast<std::size_t>(i) * rows * d, d, factor, attn::DType::f32,
                 row, rows);
  }
}

std::vector<float> exact(Problem& p) {
  std::vector<float> o(p.q.size());
  const auto view = [&](std::vector<float>& x) {  // [batch = heads, n, 1, d]
    return attn::tensor(x.data(), {p.heads, p.n, 1, p.d});
  };
  attn::forward({}, {.q = view(p.q), .k = view(p.k), .v = view(p.v)}, {.o = view(o)},
                {.backend = attn::Backend::reference});
  return o;
}

double largest_error(const Problem& p, const std::vector<float>& expected) {
  double worst = 0;
  for (std::size_t i = 0; i < p.o.size(); ++i) {
    const double error = std::abs(static_cast<double>(p.o[i]) - expected[i]);
    if (std::isnan(error)) return error;
    worst = std::max(worst, error);
  }
  return worst;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return std::fprintf(stderr, "flash_blocks N HEADS D REPEATS B_C...\n"), 2;
  Problem p{std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3]), {}, {}, {}, {}};
  const int repeats = std::atoi(argv[4]);
  const attn::cpu::TileOps& ops = attn::cpu::tile_ops(
      attn::cpu::best_instruction_set(attn::InstructionSet::automatic), attn::DType::f32);
  if (p.n % 64 != 0 || p.n % ops.rows != 0) return std::fprintf(stderr, "N: multiples of 64\n"), 2;
  const std::size_t size = static_cast<std::size_t>(p.n) * p.heads * p.d;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (auto* x : {&p.q, &p.k, &p.v}) {
    x->resize(size);
    for (float& value : *x) value = normal(random);
  }
  std::vector<int> sizes;
  for (int i = 5; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  std::vector<std::vector<double>> seconds(sizes.size());
  std::vector<double> error(sizes.size());
  const std::vector<float> expected = exact(p);
  for (int round = 0; round < repeats; ++round) {
    for (std::size_t b = 0; b < sizes.size(); ++b) {  // alternating, as the machine may be busy
      p.o.assign(size, std::numeric_limits<float>::quiet_NaN());
      const std::clock_t start = std::clock();
      for (int head = 0; head < p.heads; ++head) attend(ops, p, head, sizes[b]);
      seconds[b].push_back(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
      if (round == 0) error[b] = largest_error(p, expected);
    }
  }
  for (std::size_t b = 0; b < sizes.size(); ++b) {
    if (!(error[b] < 1e-4)) return std::fprintf(stderr, "B_c %d is wrong\n", sizes[b]), 1;
    std::sort(seconds[b].begin(), seconds[b].end());
    std::printf("%d %.6g %.3g\n", sizes[b], seconds[b][seconds[b].size() / 2], error[b]);
  }
  return 0;
}
