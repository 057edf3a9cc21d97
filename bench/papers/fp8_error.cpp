// Table 3 of the FlashAttention-3 paper, its fp8 half: root mean squared errors of O against fp64
// where Q, K and V have outliers, entries of N(0, 1) + N(0, 100) Bernoulli(0.001) in bf16.
//
// "standard, bf16" rounds S and P to bf16. Of 8-bit Q, K and V there is a line for each choice of
// scales, without and with the random rotation of Q and K (attn::quantize): what the rounding of
// Q, K and V alone costs, in fp64, and what 8-bit tensor cores make of it, with P of 8 bits and
// sums of 13 (docs/numerics.md, "Tensor cores"): by their model on this CPU, or by a GPU's kernel,
// whose O is bf16 then. The paper does not say its sizes.
//   fp8_error [cpu|cuda] [N 1024] [D 128] [HEADS 2] [SEEDS 2]
//   g++ -std=c++20 -O2 -I. -Iinclude -Isrc bench/papers/fp8_error.cpp build/verify/libattn_verify.a
//   build/libattn.a -lfmt -lpthread -ldl -o fp8_error
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "attn/attn.hpp"
#include "core/tensor/element.hpp"
#include "cuda/driver/memory.hpp"
#include "reference/reference.hpp"
#include "verify/device_data.hpp"

namespace {

using attn::CacheType;
using attn::DType;
using attn::Tensor;
using attn::reference::Precision;

struct Sizes {
  std::int64_t n = 1024, d = 128, heads = 2, seeds = 2;
  std::int64_t elements() const { return n * d * heads; }
};

// An operand in bf16, and in 8 bits with a scale for each row.
struct Operand {
  std::vector<std::uint16_t> halves;
  std::vector<std::uint8_t> bytes;
  std::vector<float> scales;

  Operand(const Sizes& sizes, std::mt19937_64& random)
      : halves(static_cast<std::size_t>(sizes.elements())),
        bytes(halves.size()),
        scales(static_cast<std::size_t>(sizes.n * sizes.heads)) {
    std::normal_distribution<double> normal;
    std::uniform_real_distribution<double> uniform;
    for (std::uint16_t& half : halves) {
      const double outlier = uniform(random) < 0.001 ? 10 * normal(random) : 0;
      attn::core::store_element(reinterpret_cast<std::byte*>(&half), DType::bf16,
                                normal(random) + outlier);
    }
  }
};

enum class Scales { tensor, head, block, row };
constexpr std::pair<Scales, const char*> kScales[] = {{Scales::tensor, "a tensor"},
                                                      {Scales::head, "a head"},
                                                      {Scales::block, "128 rows"},
                                                      {Scales::row, "a row"}};

class Errors {
 public:
  Errors(const Sizes& sizes, bool on_gpu) : sizes_(sizes), on_gpu_(on_gpu) {}

  void add_draw(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    Operand q(sizes_, random), k(sizes_, random), v(sizes_, random);
    const attn::Problem plain{.dtype = DType::bf16};
    const attn::Inputs inputs{.q = halves(q), .k = halves(k), .v = halves(v)};
    exact_ = by_reference(plain, inputs, Precision::f64);
    add("standard, bf16", by_reference(plain, inputs, Precision::problem));
    for (const auto& [scales, of] : kScales) {
      for (const bool rotates : {false, true}) {
        const auto rotation = rotates ? std::optional(seed + 1) : std::nullopt;
        const attn::Problem problem{.dtype = DType::bf16,
                                    .type_q = CacheType::e4m3,
                                    .type_k = CacheType::e4m3,
                                    .type_v = CacheType::e4m3};
        attn::Inputs stored;
        std::tie(stored.q, stored.scale_q) = quantized(q, scales, rotation);
        std::tie(stored.k, stored.scale_k) = quantized(k, scales, rotation);
        std::tie(stored.v, stored.scale_v) = quantized(v, scales, std::nullopt);
        const std::string name =
            std::string("8 bits, a scale for ") + of + (rotates ? ", rotated" : "");
        add(name + "|operands", by_reference(problem, stored, Precision::f64));
        add(name, on_gpu_ ? by_gpu(problem, stored)
                          : by_reference(problem, stored, Precision::tensor_core_8));
      }
    }
  }

  void print() const {
    std::printf("n %lld, d %lld, %lld heads, %lld draws; RMSE of O, %s\n",
                static_cast<long long>(sizes_.n), static_cast<long long>(sizes_.d),
                static_cast<long long>(sizes_.heads), static_cast<long long>(sizes_.seeds),
                on_gpu_ ? "on a GPU" : "as tensor cores add");
    for (const std::string& name : names_) {
      if (name.ends_with("|operands")) continue;
      std::printf("  %-40s %.2e", name.c_str(), root_of(name));
      if (squares_.contains(name + "|operands")) {
        std::printf("   of rounded operands alone %.2e", root_of(name + "|operands"));
      }
      std::printf("\n");
    }
    std::printf(
        "  the paper (H100): fp8 with a scale for a tensor 2.4e-02, FlashAttention-3 "
        "9.1e-03, without block scales 9.3e-03, without rotation 2.4e-02\n");
  }

 private:
  Tensor halves(Operand& x) const {
    return attn::tensor(static_cast<void*>(x.halves.data()), DType::bf16,
                        {1, sizes_.n, sizes_.heads, sizes_.d});
  }
  std::pair<Tensor, Tensor> quantized(Operand& x, Scales scales,
                                      std::optional<std::uint64_t> rotation) const {
    constexpr std::int64_t kBlock = 128;
    const Tensor bytes = attn::tensor(x.bytes.data(), {1, sizes_.n, sizes_.heads, sizes_.d});
    Tensor scale = attn::tensor(x.scales.data(), {1, sizes_.n, sizes_.heads});
    if (scales == Scales::tensor) scale.strides = {0, 0, 0, 0};
    if (scales == Scales::head) scale.strides = {0, 0, 1, 0};
    attn::quantize(halves(x), CacheType::e4m3, bytes, scale,
                   {.block = scales == Scales::block ? kBlock : 1, .rotation = rotation});
    return {bytes, scale};
  }

  std::vector<double> by_reference(const attn::Problem& problem, const attn::Inputs& inputs,
                                   Precision precision) const {
    std::vector<double> o(static_cast<std::size_t>(sizes_.elements()));
    attn::reference::forward(
        attn::complete(problem, inputs), inputs,
        {.o = attn::tensor(o.data(), {1, sizes_.n, sizes_.heads, sizes_.d}), .lse = {}}, precision);
    return o;
  }

  std::vector<double> by_gpu(const attn::Problem& problem, const attn::Inputs& host) const {
    constexpr attn::Device kGpu{attn::DeviceType::cuda, 0};
    std::list<attn::cuda::DeviceBuffer> memory;
    const auto here = [&](const Tensor& t) { return attn::verify::upload(t, kGpu, memory); };
    attn::Inputs inputs;
    inputs.q = here(host.q);
    inputs.k = here(host.k);
    inputs.v = here(host.v);
    inputs.scale_q = here(host.scale_q);
    inputs.scale_k = here(host.scale_k);
    inputs.scale_v = here(host.scale_v);
    std::vector<std::uint16_t> o(static_cast<std::size_t>(sizes_.elements()));
    const Tensor on_host = attn::tensor(static_cast<void*>(o.data()), DType::bf16,
                                        {1, sizes_.n, sizes_.heads, sizes_.d});
    const Tensor on_gpu = here(on_host);
    const attn::cuda::DeviceBuffer& result = memory.back();
    attn::PlanOptions options;
    options.device = kGpu;
    const attn::Plan plan =
        attn::make_plan(attn::complete(problem, inputs), attn::Phase::forward, options);
    const attn::verify::DeviceWorkspace workspace(plan);
    attn::Context context;
    context.workspace = workspace.tensor();
    attn::forward(plan, inputs, {.o = on_gpu, .lse = {}}, context);
    attn::cuda::synchronize(0);
    result.download(o.data(), o.size() * sizeof(o[0]));
    std::vector<double> out;
    for (const std::uint16_t& half : o) {
      out.push_back(
          attn::core::load_element(reinterpret_cast<const std::byte*>(&half), DType::bf16));
    }
    return out;
  }

  void add(const std::string& name, const std::vector<double>& o) {
    double sum = 0;
    for (std::size_t i = 0; i < o.size(); ++i) sum += (o[i] - exact_[i]) * (o[i] - exact_[i]);
    if (!squares_.contains(name)) names_.push_back(name);
    squares_[name] += sum / static_cast<double>(o.size());
  }
  double root_of(const std::string& name) const {
    return std::sqrt(squares_.at(name) / static_cast<double>(sizes_.seeds));
  }

  Sizes sizes_;
  bool on_gpu_;
  std::vector<double> exact_;
  std::vector<std::string> names_;
  std::map<std::string, double> squares_;
};

}  // namespace

int main(int count, char** words) {
  Sizes sizes;
  std::int64_t* const to[] = {&sizes.n, &sizes.d, &sizes.heads, &sizes.seeds};
  for (int i = 2; i < count && i < 6; ++i) *to[i - 2] = std::atoll(words[i]);
  Errors errors(sizes, count > 1 && std::string(words[1]) == "cuda");
  for (std::int64_t seed = 0; seed < sizes.seeds; ++seed) {
    errors.add_draw(static_cast<std::uint64_t>(seed));
  }
  errors.print();
}
