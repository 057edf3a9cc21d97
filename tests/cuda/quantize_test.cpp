// attn::quantize on a GPU: the bits of the CPU's for every type, dtype and way to share a scale,
// and rotated rows against their definition in double.
#include "cuda/quantize.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "attn/cache_type.hpp"
#include "core/cache_type.hpp"
#include "core/cached_rows.hpp"
#include "core/float8.hpp"
#include "cuda/driver/memory.hpp"
#include "cuda/gpu.hpp"
#include "cuda/jit/compile.hpp"
#include "verify/storage.hpp"

namespace attn::cuda {
namespace {

constexpr CacheType kTypes[] = {CacheType::f32,  CacheType::bf16, CacheType::f16,  CacheType::e4m3,
                                CacheType::e5m2, CacheType::i8,   CacheType::q8_0, CacheType::q4_0};
constexpr DType kSources[] = {DType::f32, DType::bf16, DType::f16};
constexpr std::byte kUntouched{0x5a};

enum class Share { none, row, block, head, tensor };
constexpr Share kShares[] = {Share::none, Share::row, Share::block, Share::head, Share::tensor};

std::int64_t extent(const Tensor& t) {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < static_cast<std::size_t>(t.rank); ++d) {
    last += (t.shape[d] - 1) * t.strides[d];
  }
  return last + 1;
}

// A tensor on the host, and a copy of it on the GPU as it is when `there` is first asked for.
struct Both {
  Tensor host;
  std::vector<std::byte> bytes;

  explicit Both(const Tensor& shape) : host(shape) {
    bytes.assign(static_cast<std::size_t>(extent(shape)) * size_of(shape.dtype), kUntouched);
    host.data = bytes.data();
  }
  Both(const Both&) = delete;
  Both& operator=(const Both&) = delete;
  Tensor on_gpu(DeviceBuffer& memory) const {
    memory.upload(bytes.data(), bytes.size());
    Tensor there = host;
    there.data = memory.data();
    there.device = kGpu;
    return there;
  }
};

// Rows [2, seqlen, 3, dim] with `gap` elements between them.
struct Call {
  static constexpr std::int64_t kBatch = 2, kHeads = 3;
  CacheType type;
  QuantizeOptions options{};
  std::int64_t dim, seqlen;
  Both x, to;
  std::vector<float> scales;
  Tensor scale{};

  Call(CacheType of, DType source, std::int64_t columns, Share share, std::int64_t gap,
       std::int64_t rows_of_head = 7)
      : type(of),
        dim(columns),
        seqlen(rows_of_head),
        x(rows(source, columns, gap)),
        to(rows(storage_dtype(of), row_size(of, columns), gap)),
        scales(static_cast<std::size_t>(count()), -7) {
    if (!core::is_scaled(type) || share == Share::none) return;
    scale = tensor(scales.data(), {kBatch, seqlen, kHeads});
    if (share == Share::head) scale.strides = {kHeads, 0, 1, 0};
    if (share == Share::tensor) scale.strides = {0, 0, 0, 0};
    if (share == Share::block) options.block = 3;
  }
  Tensor rows(DType dtype, std::int64_t columns, std::int64_t gap) const {
    Tensor t = tensor(static_cast<const void*>(nullptr), dtype, {kBatch, seqlen, kHeads, columns});
    const std::int64_t row = columns + gap;
    t.strides = {seqlen * kHeads * row, kHeads * row, row, 1};
    return t;
  }
  std::int64_t count() const { return kBatch * seqlen * kHeads; }

  template <class Number>
  void fill(const Number& number) {
    for (std::int64_t row = 0; row < count(); ++row) {
      for (std::int64_t i = 0; i < dim; ++i) {
        verify::store_element(x.host, row * x.host.strides[2] + i, number(row, i));
      }
    }
  }
  struct Result {
    std::vector<std::byte> bytes;
    std::vector<float> scales;
  };
  Result on_cpu() {
    attn::quantize(x.host, type, to.host, scale, options);
    return {to.bytes, scales};
  }
  Result on_gpu() const {
    DeviceBuffer of_x(kGpu.index, x.bytes.size()), of_to(kGpu.index, to.bytes.size());
    DeviceBuffer of_scale(kGpu.index, scales.size() * sizeof(float));
    of_scale.upload(scales.data(), scales.size() * sizeof(float));
    Tensor there = scale;
    if (scale.given()) {
      there.data = of_scale.data();
      there.device = kGpu;
    }
    const Stream stream(kGpu.index);
    Context context;
    context.stream = stream.handle();
    attn::quantize(x.on_gpu(of_x), type, to.on_gpu(of_to), there, options, context);
    stream.synchronize();
    Result result{to.bytes, scales};
    of_to.download(result.bytes.data(), result.bytes.size());
    of_scale.download(result.scales.data(), scales.size() * sizeof(float));
    return result;
  }
};

// The scale that a row whose largest number is `largest` has, and the middle of two neighbouring
// codes of the type.
double scale_for(CacheType type, double largest) {
  float16 half(static_cast<float>(largest / (type == CacheType::q4_0 ? -8 : 127)));
  if (core::is_blocked(type)) return static_cast<float>(half);
  return static_cast<float>(largest / core::largest_number(type));
}
double middle(CacheType type, std::uint64_t random) {
  if (type == CacheType::q4_0) return static_cast<double>(random % 15) - 7.5;
  if (!core::is_float8(type)) return static_cast<double>(random % 253) - 126.5;
  const Float8 format = type == CacheType::e4m3 ? Float8::e4m3 : Float8::e5m2;
  const auto code = static_cast<std::uint8_t>(random % 0x7a);
  return (core::float8_value(code, format) +
          core::float8_value(static_cast<std::uint8_t>(code + 1), format)) /
         2;
}

// Numbers as near to the middle of two codes as x can be, so that a quotient that is rounded before
// it becomes a code is often a wrong one, beside random ones of all sizes, and rows of zeros.
TEST(CudaQuantize, HasTheBitsOfTheCpu) {
  ATTN_NEEDS_GPU();
  const std::uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::size_t turn = seed % 12;
  for (const CacheType type : kTypes) {
    for (const Share share : kShares) {
      if (!core::is_scaled(type) && share != Share::none) continue;
      // Few, as the emulated GPU compiles a kernel for each.
      for (int repeat = core::is_scaled(type) ? 1 : 2; repeat > 0; --repeat) {
        constexpr std::int64_t kDims[] = {1, 128, 37, 160}, kOfBlocks[] = {32, 160};
        const std::int64_t dim = core::is_blocked(type) ? kOfBlocks[turn % 2] : kDims[turn % 4];
        const DType source = kSources[turn++ % 3];
        constexpr std::int64_t kGaps[] = {1, 4, 8};  // loads of 1, 4 and 8 columns
        Call call(type, source, dim, share, kGaps[turn / 2 % 3]);
        const double largest = std::exp(2 * normal(random));
        const double step = scale_for(type, largest);
        call.fill([&](std::int64_t row, std::int64_t i) {
          if (row % 5 == 1 || i % 32 == 7) return i % 2 == 0 ? 0.0 : -0.0;
          if (i % 32 == 0) return largest;
          if (row % 5 == 2) return largest / 2 * std::sin(normal(random));
          return step * middle(type, random());
        });
        const Call::Result got = call.on_gpu(), expected = call.on_cpu();
        const std::string where = std::string(name(type)) + " of " + std::string(name(source)) +
                                  ", dim " + std::to_string(dim) + ", share " +
                                  std::to_string(static_cast<int>(share)) + ", seed " +
                                  std::to_string(seed);
        ASSERT_EQ(got.scales, expected.scales) << where;
        ASSERT_EQ(got.bytes, expected.bytes) << where;
      }
    }
  }
}

// So many rows that some lanes have three of them, one after the other, over the ends of blocks,
// heads and sequences; the last ones have fewer.
TEST(CudaQuantize, ManyRowsHaveTheBitsOfTheCpu) {
  ATTN_NEEDS_GPU();
  std::mt19937_64 random(5);
  constexpr std::int64_t kSeqlen = 2800;
  for (const Share share : {Share::row, Share::block, Share::head}) {
    Call call(CacheType::i8, DType::f32, 128, share, 4, kSeqlen);
    call.fill([&](std::int64_t row, std::int64_t i) {
      return i == row % 128 ? static_cast<double>(1 + random() % 4096)
                            : static_cast<double>(i % 64) / 64;
    });
    const Call::Result got = call.on_gpu(), expected = call.on_cpu();
    EXPECT_TRUE(got.scales == expected.scales) << static_cast<int>(share);
    EXPECT_TRUE(got.bytes == expected.bytes) << static_cast<int>(share);
  }
}

// The largest number is so small that scales are denormal, or 0.
TEST(CudaQuantize, TinyRowsHaveTheBitsOfTheCpu) {
  ATTN_NEEDS_GPU();
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (const double largest : {0x1p-149, 0x1p-140, 0x1p-120, 0x1p-80}) {
    for (const Share share : {Share::row, Share::head}) {
      Call call(CacheType::e4m3, DType::f32, 64, share, 4);
      call.fill([&](std::int64_t, std::int64_t) { return largest * uniform(random); });
      const Call::Result got = call.on_gpu(), expected = call.on_cpu();
      EXPECT_EQ(got.scales, expected.scales) << largest;
      EXPECT_EQ(got.bytes, expected.bytes) << largest;
    }
  }
}

// Half a step of the type from H D x as the CPU computes it in double.
TEST(CudaQuantize, RotatedRowsAreRoundedFromThoseOfTheDefinition) {
  ATTN_NEEDS_GPU();
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  std::size_t turn = 0;
  for (const std::int64_t dim : {3, 24, 96, 256}) {
    for (const Share share : {Share::row, Share::head}) {
      const DType source = kSources[turn++ % 3];
      Call call(CacheType::e4m3, source, dim, share, turn % 2 == 0 ? 1 : 4);
      call.fill([&](std::int64_t, std::int64_t) { return normal(random); });
      call.options.rotation = random();
      Call exact(CacheType::f64, source, dim, Share::none, 1);
      exact.x.host = call.x.host;
      exact.options.rotation = call.options.rotation;
      exact.on_cpu();
      const Call::Result got = call.on_gpu(), expected = call.on_cpu();
      for (std::int64_t row = 0; row < call.count(); ++row) {
        const std::int64_t b = row / 21, i = row / 3 % 7, h = row % 3;
        const auto at = static_cast<std::size_t>(call.scale.offset({b, i, h}));
        const double scale = got.scales[at];
        ASSERT_NEAR(scale, expected.scales[at], scale * 1e-5);
        for (std::int64_t c = 0; c < dim; ++c) {
          const double value =
              verify::load_element(exact.to.host, row * exact.to.host.strides[2] + c);
          const auto code = static_cast<std::uint8_t>(
              got.bytes[static_cast<std::size_t>(row * call.to.host.strides[2] + c)]);
          const double step = std::max(std::abs(value) * 0x1p-4, scale * 0x1p-10);
          ASSERT_LE(std::abs(core::float8_value(code, Float8::e4m3) * scale - value),
                    step * (1 + 1e-4) + 1e-6)
              << dim << ' ' << static_cast<int>(share) << ' ' << row << ' ' << c;
        }
      }
    }
  }
}

TEST(CudaQuantize, RefusesWhatAGpuDoesNotTake) {
  ATTN_NEEDS_GPU();
  DeviceBuffer memory(kGpu.index, 1 << 16);
  const auto there = [&](DType dtype, std::int64_t columns, std::size_t from) {
    return tensor(static_cast<std::byte*>(memory.data()) + from, dtype, {2, columns}, kGpu);
  };
  const auto says = [](const Tensor& x, CacheType type, const Tensor& to) {
    return refusal(ErrorCode::invalid_argument, [&] { attn::quantize(x, type, to); });
  };
  const std::size_t half = 1 << 15;
  expect_contains(says(there(DType::f64, 64, 0), CacheType::i8, there(DType::u8, 64, half)),
                  "accepted on a GPU is no f64");
  expect_contains(says(there(DType::f32, 1025, 0), CacheType::i8, there(DType::u8, 1025, half)),
                  "rows of up to 1024 elements");
  std::vector<std::uint8_t> here(128, 7);
  expect_contains(says(there(DType::f32, 64, 0), CacheType::i8, tensor(here.data(), {2, 64})),
                  "to is");
  EXPECT_EQ(here, std::vector<std::uint8_t>(128, 7));
}

// The emulated GPU compiles with the host's compiler.
TEST(CudaQuantize, KernelsCompileWithoutSpills) {
  ATTN_NEEDS_NVRTC();
  if (std::getenv("ATTN_NVRTC") != nullptr) GTEST_SKIP() << "skipped: NVRTC is the emulator's";
  const std::string folder = ::testing::TempDir() + "attn_quantize_kernels";
  for (const CacheType type : {CacheType::e4m3, CacheType::q4_0}) {
    for (const std::int64_t dim : {128, 512}) {
      Call call(type, DType::bf16, dim, Share::head, 4);
      call.options.rotation = 1;
      const QuantizeCall made{call.x.host, call.to.host, call.scale, type, call.options};
      for (const Arch arch : {Arch{80, false}, Arch{90, true}}) {
        const Report report = compile_into(quantize_source(made), arch, {}, folder).report;
        EXPECT_EQ(report.spill_store_bytes, 0) << name(type) << ' ' << dim;
      }
    }
  }
}

}  // namespace
}  // namespace attn::cuda
