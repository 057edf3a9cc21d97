// append_kv on a GPU: the random calls of the CPU's test, and rows that have no place.
#include "attn/append_kv.hpp"

#include <cstdint>
#include <cstdlib>
#include <list>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "conformance/append_judge.hpp"
#include "core/tensor/overlap.hpp"
#include "cuda/append_kv.hpp"
#include "cuda/driver/memory.hpp"
#include "cuda/gpu.hpp"
#include "cuda/jit/compile.hpp"

namespace attn::cuda {
namespace {

using testing::AppendCase;
using testing::Owned;

// Copies of tensors in memory of the GPU.
class Copies {
 public:
  void add(Tensor& t) {
    if (!t.given()) return;
    const core::Bytes host = core::bytes_of(t);
    const auto bytes =
        static_cast<std::size_t>(std::max<std::int64_t>(0, host.last - host.first + 1));
    Copy& copy = copies_.emplace_back(Copy{t.data, bytes, DeviceBuffer(kGpu.index, bytes + 16)});
    if (bytes > 0) copy.there.upload(t.data, bytes);  // no stride is negative
    t.data = copy.there.data();
    t.device = kGpu;
  }
  void download() const {
    for (const Copy& copy : copies_) {
      if (copy.bytes > 0) copy.there.download(copy.host, copy.bytes);
    }
  }

 private:
  struct Copy {
    void* host;
    std::size_t bytes;
    DeviceBuffer there;
  };
  std::list<Copy> copies_;
};

void run_on_gpu(const AppendProblem& problem, AppendInputs in, AppendOutputs out) {
  Copies read, written;
  for (Tensor* t : {&in.q, &in.k, &in.v, &in.cu_seqlens, &in.seqused, &in.cache_seqlens,
                    &in.positions, &in.rope_positions, &in.page_table, &in.inv_freq, &in.cos,
                    &in.sin, &in.norm_weight_q, &in.norm_weight_k, &in.scale_k, &in.scale_v}) {
    read.add(*t);
  }
  for (Tensor* t : {&out.q, &out.k, &out.v, &out.scale_k, &out.scale_v}) written.add(*t);
  const Stream stream(kGpu.index);
  Context context;
  context.stream = stream.handle();
  append_kv(problem, in, out, context);
  stream.synchronize();
  written.download();
}

TEST(CudaAppendKv, AgreesWithTheDefinitionInRandomCalls) {
  ATTN_NEEDS_GPU();
  const std::uint64_t first = std::random_device()();
  for (std::uint64_t seed = first; seed < first + 24 && !HasFailure(); ++seed) {
    AppendCase c(seed);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + c.text());
    run_on_gpu(c.problem, c.in, c.out);
    testing::judge(c, false);
  }
}

// Rows of which a warp takes several heads, the last group being smaller.
TEST(CudaAppendKv, PromptsAreCopied) {
  ATTN_NEEDS_GPU();
  constexpr std::int64_t kTokens = 1900, kHeads = 5, kHeadsK = 2, kDim = 8;
  std::vector<float> q(kTokens * kHeads * kDim), k(kTokens * kHeadsK * kDim);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i);
  for (std::size_t i = 0; i < k.size(); ++i) k[i] = -static_cast<float>(i);
  std::vector<float> to_q(q.size(), NAN), cache(k.size(), NAN);
  const std::vector<std::int32_t> length{0};
  run_on_gpu({},
             {.q = tensor(q.data(), {1, kTokens, kHeads, kDim}),
              .k = tensor(k.data(), {1, kTokens, kHeadsK, kDim}),
              .cache_seqlens = tensor(length.data(), {1})},
             {.q = tensor(to_q.data(), {1, kTokens, kHeads, kDim}),
              .k = tensor(cache.data(), {1, kTokens, kHeadsK, kDim})});
  EXPECT_EQ(to_q, q);
  EXPECT_EQ(cache, k);
}

// Positions past the cache, negative ones, and pages that are none.
TEST(CudaAppendKv, RowsWithoutAPlaceAreNotWritten) {
  ATTN_NEEDS_GPU();
  constexpr std::int64_t kHeads = 2, kDim = 8;
  std::vector<float> k(6 * kHeads * kDim, 1.0f), q(k), to_q(k.size(), 9.0f);
  std::vector<float> cache(3 * 4 * kHeads * kDim, 9.0f);
  const std::vector<std::int32_t> positions{0, -1, 4, 8, 100, 12}, table{2, -1, 3, 0};
  const AppendInputs in{.q = tensor(q.data(), {1, 6, kHeads, kDim}),
                        .k = tensor(k.data(), {1, 6, kHeads, kDim}),
                        .positions = tensor(positions.data(), {1, 6}),
                        .page_table = tensor(table.data(), {1, 4})};
  const AppendOutputs out{.q = tensor(to_q.data(), {1, 6, kHeads, kDim}),
                          .k = tensor(cache.data(), {3, 4, kHeads, kDim})};
  run_on_gpu({}, in, out);
  for (std::size_t i = 0; i < cache.size(); ++i) {
    const std::size_t row = i / (kHeads * kDim);
    // Position 0 is row 0 of page 2, position 12 row 0 of page 0.
    ASSERT_EQ(cache[i], row == 8 || row == 0 ? 1.0f : 9.0f) << i;
  }
  for (std::size_t i = 0; i < to_q.size(); ++i) {
    ASSERT_EQ(to_q[i], i / (kHeads * kDim) == 1 ? 9.0f : 1.0f) << i;
  }
}

// Numbers of int64 whose low halves would be a place.
TEST(CudaAppendKv, NumbersPast32BitsAreNoPlaces) {
  ATTN_NEEDS_GPU();
  constexpr std::int64_t kHeads = 2, kDim = 8, kHigh = std::int64_t{1} << 32;
  const std::vector<float> k(4 * kHeads * kDim, 1.0f);
  const auto rows_written = [&](const AppendProblem& problem, AppendInputs in) {
    std::vector<float> cache(3 * 4 * kHeads * kDim, 9.0f);
    in.k = tensor(k.data(), {1, 4, kHeads, kDim});
    const bool paged = in.page_table.given();
    run_on_gpu(problem, in,
               {.k = paged ? tensor(cache.data(), {3, 4, kHeads, kDim})
                           : tensor(cache.data(), {1, 12, kHeads, kDim})});
    std::vector<std::size_t> rows;
    for (std::size_t i = 0; i < cache.size(); i += kHeads * kDim) {
      if (cache[i] == 1.0f) rows.push_back(i / (kHeads * kDim));
    }
    return rows;
  };
  using Rows = std::vector<std::size_t>;
  const std::vector<std::int64_t> positions{0, kHigh + 1, 4, 8}, table{2, kHigh, 0};
  const Tensor at = tensor(positions.data(), {1, 4});
  EXPECT_EQ(rows_written({}, {.positions = at}), (Rows{0, 4, 8}));
  EXPECT_EQ(rows_written({}, {.positions = at, .page_table = tensor(table.data(), {1, 3})}),
            (Rows{0, 8}));
  // Of a ring a large position has a place: 2^32 + 1 is 5 modulo 12.
  EXPECT_EQ(rows_written({.ring = true}, {.positions = at}), (Rows{0, 4, 5, 8}));
  for (const std::int64_t keys : {kHigh, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(rows_written({}, {.cache_seqlens = tensor(&keys, {1})}), Rows{}) << keys;
  }
  // seqused counts no more rows than there are, and no fewer than none.
  const std::int64_t start = 3;
  for (const auto& [used, rows] :
       {std::pair<std::int64_t, Rows>{2, {3, 4}}, {kHigh + 1, {3, 4, 5, 6}}, {-kHigh + 1, {}}}) {
    EXPECT_EQ(
        rows_written({}, {.seqused = tensor(&used, {1}), .cache_seqlens = tensor(&start, {1})}),
        rows)
        << used;
  }
}

// Numbers that are too large for f32 when divided by a given scale become the largest codes, as on
// a CPU.
TEST(CudaAppendKv, QuotientsPastFloatAreTheLargestCodes) {
  ATTN_NEEDS_GPU();
  for (const CacheType type : {CacheType::e4m3, CacheType::e5m2, CacheType::i8}) {
    for (const std::int64_t dim : {8, 7}) {  // of 7 columns each is stored alone
      for (float scale : {0x1p-3f, 0x1p-50f, 0x1p-70f, 0x1p-149f, -0x1.4p-66f}) {
        std::vector<float> k{0x1.8p127f, -0x1.fp126f, 0x1p100f, -0x1p70f, 0, 1, -1, 2};
        k.resize(static_cast<std::size_t>(dim));
        const std::vector<std::int32_t> length{0};
        const auto codes = [&](void (*run)(const AppendProblem&, AppendInputs, AppendOutputs)) {
          std::vector<std::uint8_t> cache(k.size(), 0xa5);
          run({.type_k = type},
              {.k = tensor(k.data(), {1, 1, 1, dim}),
               .cache_seqlens = tensor(length.data(), {1}),
               .scale_k = tensor(&scale, {1})},
              {.k = tensor(static_cast<void*>(cache.data()), DType::u8, {1, 1, 1, dim})});
          return cache;
        };
        const auto on_cpu = [](const AppendProblem& problem, AppendInputs in, AppendOutputs out) {
          append_kv(problem, in, out);
        };
        EXPECT_EQ(codes(run_on_gpu), codes(on_cpu)) << name(type) << ", " << dim << ", " << scale;
      }
    }
  }
}

// The emulated GPU compiles with the host's compiler.
TEST(CudaAppendKv, KernelsCompileWithoutSpills) {
  ATTN_NEEDS_NVRTC();
  if (std::getenv("ATTN_NVRTC") != nullptr) GTEST_SKIP() << "skipped: NVRTC is the emulator's";
  const std::string folder = ::testing::TempDir() + "attn_append_kernels";
  for (std::uint64_t seed = 1; seed < 6; ++seed) {
    AppendCase c(seed);
    const Source source = append_kv_source(core::check_append(c.problem, c.in, c.out));
    const Report report = compile_into(source, {80, false}, {}, folder).report;
    EXPECT_EQ(report.spill_store_bytes, 0) << c.text();
  }
}

}  // namespace
}  // namespace attn::cuda
