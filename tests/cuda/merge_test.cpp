// attn::merge on a GPU: parts of all dtypes, lengths and strides against the CPU's, what infinite
// and NaN LSE give, and two caches in one softmax.
#include "cuda/merge.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <list>
#include <random>
#include <string>
#include <vector>

#include "attn/run.hpp"
#include "conformance/two_caches.hpp"
#include "cuda/driver/memory.hpp"
#include "cuda/gpu.hpp"
#include "cuda/jit/compile.hpp"

namespace attn::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// O and LSE on the host and on the GPU, in memory for a head more than there is and `gap` columns.
class Part {
 public:
  Part(DType dtype, std::int64_t queries, std::int64_t heads, std::int64_t dim, bool packed,
       std::int64_t gap)
      : heads_(heads),
        dim_(dim),
        gap_(gap),
        o_(static_cast<std::size_t>(kBatch * queries * (heads + 1) * (dim + gap)) * size_of(dtype),
           verify::kPoison),
        lse_(static_cast<std::size_t>(kBatch * (heads + 1) * queries), NAN),
        there_o_(kGpu.index, o_.size()),
        there_lse_(kGpu.index, lse_.size() * sizeof(float)) {
    const std::int64_t row = dim + gap, query = row * (heads + 1);
    const std::int64_t in_batch = packed ? kBatch * queries : queries;
    host.o = packed ? tensor(o_.data(), dtype, {in_batch, heads, dim})
                    : tensor(o_.data(), dtype, {kBatch, queries, heads, dim});
    host.lse = packed ? tensor(lse_.data(), {heads, in_batch})
                      : tensor(lse_.data(), {kBatch, heads, queries});
    if (packed) {
      host.o.strides = {query, row, 1, 0};
    } else {
      host.o.strides = {query * queries, query, row, 1};
      host.lse.strides = {(heads + 1) * queries, queries, 1, 0};
    }
    gpu = host;
    gpu.o.data = there_o_.data();
    gpu.lse.data = there_lse_.data();
    gpu.o.device = gpu.lse.device = kGpu;
  }

  template <class Number>
  void fill(const Number& number) {
    verify::Elements shape = verify::read_elements(host.o);
    for (std::size_t i = 0; i < shape.values.size(); ++i) {
      const std::vector<std::int64_t> at = shape.coordinates(i);
      std::int64_t offset = 0;
      for (std::size_t d = 0; d < at.size(); ++d) offset += at[d] * host.o.strides[d];
      verify::store_element(host.o, offset, number());
    }
    for (float& lse : lse_) lse = static_cast<float>(4 * number());
    upload();
  }
  std::vector<float>& lse() { return lse_; }
  // Whether nothing was written beside the elements of O and LSE.
  bool rest_is_poison() const {
    std::vector<std::byte> rest = o_;
    for (std::int64_t row = 0; row < host.o.size() / dim_; ++row) {
      const std::int64_t head = row % heads_, query = row / heads_;
      const std::int64_t at = query * (heads_ + 1) * (dim_ + gap_) + head * (dim_ + gap_);
      const std::size_t bytes = size_of(host.o.dtype);
      std::fill_n(rest.begin() + at * static_cast<std::int64_t>(bytes),
                  dim_ * static_cast<std::int64_t>(bytes), verify::kPoison);
    }
    const auto poison = [](std::byte byte) { return byte == verify::kPoison; };
    const auto nan = [](float lse) { return std::isnan(lse); };
    return std::all_of(rest.begin(), rest.end(), poison) &&
           std::count_if(lse_.begin(), lse_.end(), nan) ==
               static_cast<std::ptrdiff_t>(lse_.size()) - host.lse.size();
  }
  void upload() {
    there_o_.upload(o_.data(), o_.size());
    there_lse_.upload(lse_.data(), lse_.size() * sizeof(float));
  }
  // What lies on the GPU, in a part like this.
  void download() {
    there_o_.download(o_.data(), o_.size());
    there_lse_.download(lse_.data(), lse_.size() * sizeof(float));
  }

  Outputs host, gpu;

 private:
  static constexpr std::int64_t kBatch = 2;
  std::int64_t heads_, dim_, gap_;
  std::vector<std::byte> o_;
  std::vector<float> lse_;
  DeviceBuffer there_o_, there_lse_;
};

void merge_on_gpu(const std::vector<Outputs>& parts, const Outputs& result) {
  const Stream stream(kGpu.index);
  Context context;
  context.stream = stream.handle();
  attn::merge(parts, result, context);
  stream.synchronize();
}

// A unit in the last place where exp and log in double differ in theirs.
void expect_alike(const Tensor& got, const Tensor& expected, const std::string& where) {
  const verify::Elements a = verify::read_elements(got), b = verify::read_elements(expected);
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    const double x = a.values[i], y = b.values[i];
    if (std::isnan(y) || std::isinf(y)) {
      ASSERT_TRUE(x == y || (std::isnan(x) && std::isnan(y))) << where << ' ' << i << ' ' << x;
    } else {
      ASSERT_LE(std::abs(x - y), 2.01 * verify::half_ulp(expected.dtype, y)) << where << ' ' << i;
    }
  }
}

TEST(CudaMerge, IsThatOfTheCpu) {
  ATTN_NEEDS_GPU();
  constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
  const std::uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const auto number = [&] { return normal(random); };
  std::size_t turn = seed % 3;
  for (const std::int64_t dim : {1, 64, 130, 192}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{2}, kMostMergedParts}) {
      for (const bool packed : {false, true}) {
        const std::string where = "seed " + std::to_string(seed) + ", dim " + std::to_string(dim) +
                                  ", " + std::to_string(count) + " parts";
        // Elements that can be loaded one, four and eight at a time.
        constexpr std::int64_t kGaps[] = {1, 4, 8};
        const std::int64_t gap = kGaps[++turn % 3];
        const std::size_t step = turn % 2;  // parts of one type, or of all
        std::list<Part> parts;
        std::vector<Outputs> host, gpu;
        for (std::size_t p = 0; p < count; ++p) {
          Part& part =
              parts.emplace_back(kTypes[(turn / 3 + p * step) % 3], 5, 3, dim, packed, gap);
          part.fill(number);
          host.push_back(part.host);
          gpu.push_back(part.gpu);
        }
        const DType dtype = kTypes[turn / 2 % 3];
        Part expected(dtype, 5, 3, dim, packed, gap), got(dtype, 5, 3, dim, packed, gap);
        got.upload();
        attn::merge(host, expected.host);
        merge_on_gpu(gpu, got.gpu);
        got.download();
        expect_alike(got.host.o, expected.host.o, where);
        expect_alike(got.host.lse, expected.host.lse, where);
        EXPECT_TRUE(got.rest_is_poison()) << where;
      }
    }
  }
}

TEST(CudaMerge, TheResultMayBeAPart) {
  ATTN_NEEDS_GPU();
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  Part a(DType::bf16, 4, 2, 64, false, 4), b(DType::f32, 4, 2, 64, false, 4);
  Part expected(DType::f32, 4, 2, 64, false, 4);
  for (Part* part : {&a, &b}) part->fill([&] { return normal(random); });
  attn::merge({a.host, b.host}, expected.host);
  merge_on_gpu({a.gpu, b.gpu}, b.gpu);
  b.download();
  expect_alike(b.host.o, expected.host.o, "O");
  expect_alike(b.host.lse, expected.host.lse, "LSE");
}

// LSE of two parts, and O of the first NaN where its LSE is -inf.
TEST(CudaMerge, InfiniteAndNaNLseGiveWhatTheyDoOnTheCpu) {
  ATTN_NEEDS_GPU();
  const std::vector<float> numbers{-kInfinity, kInfinity, NAN, 2, -200, 3e38F};
  for (const float first : numbers) {
    for (const float second : numbers) {
      Part a(DType::f32, 1, 1, 8, true, 4), b(DType::f16, 1, 1, 8, true, 4);
      Part expected(DType::bf16, 1, 1, 8, true, 4), got(DType::bf16, 1, 1, 8, true, 4);
      a.fill([&] { return first == -kInfinity ? NAN : 3.0; });
      b.fill([&] { return second == -kInfinity ? NAN : 5.0; });
      std::fill(a.lse().begin(), a.lse().end(), first);
      std::fill(b.lse().begin(), b.lse().end(), second);
      for (Part* part : {&a, &b, &got}) part->upload();
      attn::merge({a.host, b.host}, expected.host);
      merge_on_gpu({a.gpu, b.gpu}, got.gpu);
      got.download();
      const std::string where = std::to_string(first) + " and " + std::to_string(second);
      expect_alike(got.host.o, expected.host.o, where);
      expect_alike(got.host.lse, expected.host.lse, where);
    }
  }
}

TEST(CudaMerge, RefusesWhatAGpuDoesNotTake) {
  ATTN_NEEDS_GPU();
  Part a(DType::f32, 1, 1, 8, true, 4), result(DType::f32, 1, 1, 8, true, 4);
  const std::vector<Outputs> many(kMostMergedParts + 1, a.gpu);
  const auto invalid = ErrorCode::invalid_argument;
  expect_contains(refusal(invalid, [&] { attn::merge(many, result.gpu); }),
                  "parts has 33 elements");
  expect_contains(refusal(invalid,
                          [&] {
                            attn::merge({a.gpu, a.host}, result.gpu);
                          }),
                  "parts[1].o is");
  expect_contains(refusal(invalid, [&] { attn::merge({a.gpu}, result.host); }), "result.o is");
  Outputs of_the_host = a.host;
  of_the_host.o.device = of_the_host.lse.device = kGpu;
  expect_contains(refusal(invalid, [&] { attn::merge({of_the_host}, result.gpu); }), "parts[0].o");
  Outputs wide = a.gpu;
  wide.o.dtype = DType::f64;
  expect_contains(refusal(invalid, [&] { attn::merge({wide}, result.gpu); }), "parts[0].o is f64");
}

void run_there(const verify::DeviceData& data, const Problem& problem) {
  const Plan plan = make_plan(problem, Phase::forward, {.device = kGpu});
  const verify::DeviceWorkspace workspace(plan);
  const Stream stream(kGpu.index);
  Context context;
  context.stream = stream.handle();
  context.workspace = workspace.tensor();
  forward(plan, data.inputs, data.outputs, context);
  stream.synchronize();
}

TEST(CudaMerge, OfTwoCachesIsOneSoftmax) {
  ATTN_NEEDS_GPU();
  for (const char* type : {"f32", "bf16"}) {  // each compiles kernels of its own
    testing::TwoCaches caches(type, std::random_device()());
    verify::DeviceData window(caches.window, Phase::forward, kGpu);
    verify::DeviceData listed(caches.listed, Phase::forward, kGpu);
    run_there(window, caches.window.problem);
    run_there(listed, caches.listed.problem);
    Outputs merged = caches.merged;
    std::list<DeviceBuffer> memory;
    for (Tensor* t : {&merged.o, &merged.lse}) *t = verify::upload(*t, kGpu, memory);
    merge_on_gpu({window.outputs, listed.outputs}, merged);
    memory.front().download(caches.merged.o.data,
                            static_cast<std::size_t>(merged.o.size()) * size_of(merged.o.dtype));
    memory.back().download(caches.merged.lse.data,
                           static_cast<std::size_t>(merged.lse.size()) * sizeof(float));
    for (const verify::Comparison& result : caches.judge(true)) {
      EXPECT_TRUE(result.passed()) << type << ": " << to_string(result);
    }
  }
}

// The emulated GPU compiles with the host's compiler.
TEST(CudaMerge, KernelsCompileWithoutSpills) {
  ATTN_NEEDS_NVRTC();
  if (std::getenv("ATTN_NVRTC") != nullptr) GTEST_SKIP() << "skipped: NVRTC is the emulator's";
  const std::string folder = ::testing::TempDir() + "attn_merge_kernels";
  std::vector<MergeConfig> configs(4);
  configs[1].wide = 4, configs[1].part_lanes = 32;
  configs[2].wide = 8, configs[2].type = device::MergeType::bf16;
  configs[3].wide = 4, configs[3].part_lanes = 8, configs[3].type = device::MergeType::f32;
  for (const MergeConfig& config : configs) {
    for (const Arch arch : {Arch{80, false}, Arch{90, true}}) {
      const Report report = compile_into(merge_source(config), arch, {}, folder).report;
      EXPECT_EQ(report.spill_store_bytes, 0) << config.wide << ' ' << config.part_lanes;
      EXPECT_LE(report.registers, 128) << config.wide << ' ' << config.part_lanes;
    }
  }
}

}  // namespace
}  // namespace attn::cuda
