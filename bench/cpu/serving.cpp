// What an engine meets on a CPU, medians of calls (processor time of one thread, else wall time)
// that alternate with what they are compared with:
//   mixed   decodes beside a verify step or a chunk in one call, and the same in a call for each
//   short   a plan for a long cache of which few keys are in use, and a plan for as many keys
//   merge   two parts of 64 x 32 rows of 128 numbers, and a loop in double that is written out
//   decode  one to eight rows a K, V head, GB/s of K and V; caches take turns, 128 MiB of them
//   append  append_kv of K and V of a prompt to an empty cache, beside memcpy of as many bytes
// Arguments: one of these words, the number of threads (1), an instruction set (the best).
//   g++ -std=c++20 -O2 -Iinclude bench/cpu/serving.cpp build/libattn.a -lfmt -lpthread -ldl -o
//   serving
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attn/attn.hpp"

namespace {

attn::Context context;
int threads = 1;

// Of one thread its processor time, so that a busy machine does not count.
double now() {
  std::timespec t{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double seconds_of(const std::function<void()>& call) {
  const double start = now();
  call();
  return now() - start;
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

struct Two {
  double a, b;
};
// Medians of calls of both in turn, for a second.
Two in_turn(const std::function<void()>& a, const std::function<void()>& b) {
  std::vector<double> of_a, of_b;
  for (double sum = 0; sum < 1 || of_a.size() < 9; sum += of_a.back() + of_b.back()) {
    of_a.push_back(seconds_of(a));
    of_b.push_back(seconds_of(b));
  }
  return {median(of_a), median(of_b)};
}

struct Shape {
  std::int64_t heads_q, heads_k, dim;
  attn::DType dtype;
  attn::CacheType cache = attn::CacheType::as_q;
};

std::vector<std::byte> numbers(std::int64_t count, attn::DType dtype, unsigned seed) {
  std::minstd_rand random(seed);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * attn::size_of(dtype));
  for (std::int64_t i = 0; i < count; ++i) {
    const float x = static_cast<float>(random() % 2001) / 600.0f - 1.7f;
    const auto put = [&](auto number) {
      std::memcpy(bytes.data() + static_cast<std::size_t>(i) * sizeof(number), &number,
                  sizeof(number));
    };
    if (dtype == attn::DType::f32) put(x);
    if (dtype == attn::DType::bf16) put(attn::bfloat16(x));
    if (dtype == attn::DType::f16) put(attn::float16(x));
  }
  return bytes;
}

// Elements of a row of the cache.
std::int64_t row_size(const Shape& s) {
  return s.cache == attn::CacheType::as_q ? s.dim : attn::row_size(s.cache, s.dim);
}

// So many rows in the type of the cache, which has bytes and needs no scales of tensors.
std::vector<std::byte> quantized(std::vector<std::byte>& x, std::int64_t rows, const Shape& s) {
  std::vector<std::byte> out(static_cast<std::size_t>(rows * row_size(s)));
  attn::quantize(
      attn::tensor(static_cast<void*>(x.data()), s.dtype, {rows, s.dim}), s.cache,
      attn::tensor(static_cast<void*>(out.data()), attn::DType::u8, {rows, row_size(s)}));
  return out;
}

// Causal attention of packed queries over `used` keys of a cache of n for each sequence.
struct Call {
  Call(const std::vector<std::int32_t>& queries, std::int64_t n, std::int32_t used, const Shape& s)
      : starts(queries.size() + 1), lengths(queries.size(), used) {
    std::partial_sum(queries.begin(), queries.end(), starts.begin() + 1);
    const std::int64_t batch = std::ssize(queries), rows = starts.back();
    q = numbers(rows * s.heads_q * s.dim, s.dtype, 1);
    k = numbers(batch * n * s.heads_k * s.dim, s.dtype, 2);
    v = numbers(batch * n * s.heads_k * s.dim, s.dtype, 3);
    o = q;
    if (s.cache != attn::CacheType::as_q) {
      for (std::vector<std::byte>* x : {&k, &v}) *x = quantized(*x, batch * n * s.heads_k, s);
    }
    const attn::DType stored =
        s.cache == attn::CacheType::as_q ? s.dtype : attn::storage_dtype(s.cache);
    const std::int64_t size = row_size(s);
    const auto view = [&](std::vector<std::byte>& x, std::initializer_list<std::int64_t> shape) {
      return attn::tensor(static_cast<void*>(x.data()), s.dtype, shape);
    };
    const auto cache = [&](std::vector<std::byte>& x) {
      return attn::tensor(static_cast<void*>(x.data()), stored, {batch, n, s.heads_k, size});
    };
    inputs = {.q = view(q, {rows, s.heads_q, s.dim}),
              .k = cache(k),
              .v = cache(v),
              .cu_seqlens_q = attn::tensor(starts.data(), {batch + 1}),
              .seqused_k = attn::tensor(lengths.data(), {batch})};
    outputs = {.o = view(o, {rows, s.heads_q, s.dim})};
    attn::Problem problem{.layout_q = attn::Layout::packed, .mask = attn::causal()};
    problem.type_k = problem.type_v = s.cache;
    plan = attn::make_plan(attn::complete(problem, inputs), attn::Phase::forward,
                           {.threads = threads}, context);
    run();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  void run() const { attn::forward(plan, inputs, outputs, context); }

  std::vector<std::int32_t> starts, lengths;
  std::vector<std::byte> q, k, v, o;
  attn::Inputs inputs;
  attn::Outputs outputs;
  attn::Plan plan;
};

std::string text_of(const Shape& s) {
  return std::to_string(s.heads_q) + ":" + std::to_string(s.heads_k) + " d " +
         std::to_string(s.dim) + " " +
         std::string(s.cache == attn::CacheType::as_q ? attn::name(s.dtype) : attn::name(s.cache));
}

void mixed(std::size_t decodes, std::int32_t chunk, std::int32_t n, const Shape& s) {
  std::vector<std::int32_t> all(decodes, 1);
  const Call apart(all, n, n, s), other({chunk}, n, n, s);
  all.push_back(chunk);
  const Call one(all, n, n, s);
  const Two t = in_turn([&] { one.run(); }, [&] { apart.run(), other.run(); });
  std::printf("%zu decodes and %d queries, %s, n %d: one call %.2f ms, two %.2f, ratio %.2f\n",
              decodes, chunk, text_of(s).c_str(), n, t.a * 1e3, t.b * 1e3, t.a / t.b);
}

void shorter(std::int32_t used, const Shape& s) {
  const Call whole({1}, 8192, used, s), view({1}, used, used, s);
  const Two t = in_turn([&] { whole.run(); }, [&] { view.run(); });
  std::printf("%d keys of 8192, %s: %.1f us, of %d %.1f us\n", used, text_of(s).c_str(), t.a * 1e6,
              used, t.b * 1e6);
}

void merge() {
  constexpr std::int64_t kRows = 64 * 32, kDim = 128;
  std::vector<float> a(kRows * kDim, 1), b(kRows * kDim, 2), o(a), la(kRows, 0.5f), lb(kRows, 0.7f),
      lo(kRows);
  const auto part = [](std::vector<float>& x, std::vector<float>& lse) {
    return attn::Outputs{.o = attn::tensor(x.data(), {64, 1, 32, kDim}),
                         .lse = attn::tensor(lse.data(), {64, 32, 1})};
  };
  const std::vector<attn::Outputs> parts{part(a, la), part(b, lb)};
  const auto by_hand = [&] {
    for (std::size_t r = 0; r < kRows; ++r) {
      const double most = std::max(la[r], lb[r]);
      double x = std::exp(la[r] - most), y = std::exp(lb[r] - most);
      const double sum = x + y;
      x /= sum, y /= sum;
      for (std::size_t c = r * kDim; c < (r + 1) * kDim; ++c) {
        o[c] = static_cast<float>(x * double{a[c]} + y * double{b[c]});
      }
      lo[r] = static_cast<float>(most + std::log(sum));
    }
  };
  const Two t = in_turn([&] { attn::merge(parts, part(o, lo)); }, by_hand);
  std::printf("merge %.0f us, by hand %.0f us\n", t.a * 1e6, t.b * 1e6);
}

void decode(std::int32_t queries, std::int64_t n, const Shape& s) {
  const std::size_t element = s.cache == attn::CacheType::as_q ? attn::size_of(s.dtype) : 1;
  const std::int64_t bytes = 2 * n * s.heads_k * row_size(s) * static_cast<std::int64_t>(element);
  std::vector<std::unique_ptr<Call>> calls;
  for (std::int64_t held = 0; held < (std::int64_t{128} << 20); held += bytes) {
    calls.push_back(std::make_unique<Call>(std::vector<std::int32_t>{queries}, n,
                                           static_cast<std::int32_t>(n), s));
  }
  std::vector<double> seconds;
  for (double sum = 0; sum < 0.5 || seconds.size() < 9; sum += seconds.back()) {
    seconds.push_back(seconds_of([&] { calls[seconds.size() % calls.size()]->run(); }));
  }
  std::printf("%d queries, %s, n %ld: %.0f us, %.1f GB/s\n", queries, text_of(s).c_str(),
              static_cast<long>(n), median(seconds) * 1e6,
              static_cast<double>(bytes) / median(seconds) * 1e-9);
}

void append_row(const char* what, attn::DType dtype, attn::CacheType type,
                attn::AppendProblem problem, bool rope, bool paged) {
  problem.type_k = problem.type_v = type;
  constexpr std::int64_t kTokens = 4096, kHeads = 8, kDim = 128, kPage = 16;
  const std::int64_t size = attn::row_size(type, kDim);
  const attn::DType stored = attn::storage_dtype(type);
  const std::int64_t from = kTokens * kHeads * kDim * static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t to = kTokens * kHeads * size * static_cast<std::int64_t>(size_of(stored));
  const auto bytes = [](std::int64_t count) {
    return std::vector<std::byte>(static_cast<std::size_t>(count), std::byte{0x3c});
  };
  std::vector<std::byte> k = bytes(from), v = k, cache_k = bytes(to), cache_v = cache_k;
  std::vector<std::byte> copy_from = bytes(from + to), copy_to = copy_from;
  const auto rows = [&](std::vector<std::byte>& m) {
    return attn::tensor(static_cast<void*>(m.data()), dtype, {1, kTokens, kHeads, kDim});
  };
  const auto cache = [&](std::vector<std::byte>& m) {
    return paged ? attn::tensor(static_cast<void*>(m.data()), stored,
                                {kTokens / kPage, kPage, kHeads, size})
                 : attn::tensor(static_cast<void*>(m.data()), stored, {1, kTokens, kHeads, size});
  };
  std::int32_t length = 0;
  std::vector<std::int32_t> pages(kTokens / kPage);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    pages[i] = static_cast<std::int32_t>(i * 77 % pages.size());
  }
  std::vector<float> cos(kTokens * kDim / 2, 0.6f), sin(kTokens * kDim / 2, 0.8f);
  attn::AppendInputs in{.k = rows(k), .v = rows(v), .cache_seqlens = attn::tensor(&length, {1})};
  if (paged) in.page_table = attn::tensor(pages.data(), {1, kTokens / kPage});
  if (rope) {
    in.cos = attn::tensor(cos.data(), {kTokens, kDim / 2});
    in.sin = attn::tensor(sin.data(), {kTokens, kDim / 2});
  }
  const attn::AppendOutputs out{.k = cache(cache_k), .v = cache(cache_v)};
  const auto append = [&] { attn::append_kv(problem, in, out, context); };
  // Of as many bytes, half of which are read.
  const std::int64_t piece = (from + to) / threads;
  const auto copy = [&] {
    context.executor->parallel_for(threads, [&](std::int64_t i, int) {
      std::memcpy(copy_to.data() + i * piece, copy_from.data() + i * piece,
                  static_cast<std::size_t>(piece));
    });
  };
  const Two t = in_turn(append, copy);
  const double gbps = static_cast<double>(2 * (from + to)) * 1e-9;
  std::printf("%-29s %6.0f us %5.1f GB/s, copy %5.1f GB/s: %.2f\n", what, t.a * 1e6, gbps / t.a,
              gbps / t.b, t.b / t.a);
}

void append() {
  using attn::CacheType, attn::DType;
  append_row("bf16", DType::bf16, CacheType::bf16, {}, false, false);
  append_row("bf16, pages of 16", DType::bf16, CacheType::bf16, {}, false, true);
  append_row("bf16, rope of K", DType::bf16, CacheType::bf16, {}, true, false);
  append_row("bf16, norm, interleaved rope", DType::bf16, CacheType::bf16,
             {.rope_pairs = attn::RopePairs::interleaved, .norm = true}, true, false);
  append_row("f32 to bf16", DType::f32, CacheType::bf16, {}, false, false);
  append_row("bf16 to e4m3", DType::bf16, CacheType::e4m3, {}, false, false);
  append_row("bf16 to q8_0", DType::bf16, CacheType::q8_0, {}, false, false);
  append_row("bf16 to q8_0, rope, hadamard", DType::bf16, CacheType::q8_0,
             {.hadamard = true, .hadamard_v = true}, true, false);
  append_row("bf16 to q4_0", DType::bf16, CacheType::q4_0, {}, false, false);
}

}  // namespace

int main(int argc, char** argv) {
  using attn::DType;
  const std::string what = argc > 1 ? argv[1] : "";
  if (argc > 2) threads = std::atoi(argv[2]);
  if (argc > 3) context.isa = attn::parse_instruction_set(argv[3]);
  context.executor = attn::make_thread_pool(threads);
  const Shape large{32, 8, 128, DType::bf16}, small{9, 3, 64, DType::f32};
  if (what == "mixed") {
    for (const Shape& s : {large, small}) {
      mixed(7, 4, 2048, s);
      mixed(31, 128, 1024, s);
      mixed(63, 128, 1024, s);
    }
  } else if (what == "short") {
    for (const Shape& s : {large, small}) shorter(100, s), shorter(1000, s);
  } else if (what == "merge") {
    merge();
  } else if (what == "decode") {
    std::printf("read bandwidth: %.1f GB/s\n", attn::measure_read_gbps(context));
    const auto decode_in = [](DType dtype, attn::CacheType cache) {
      for (const auto& [heads_q, heads_k, dim] :
           {std::array{9, 3, 64}, {32, 8, 128}, {64, 8, 128}, {16, 16, 64}, {32, 32, 128}}) {
        decode(1, 8192, {heads_q, heads_k, dim, dtype, cache});
      }
    };
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      decode_in(dtype, attn::CacheType::as_q);
    }
    decode_in(DType::bf16, attn::CacheType::q8_0);
  } else if (what == "append") {
    append();
  } else {
    std::printf("accepted are mixed, short, merge, decode and append\n");
    return 2;
  }
  return 0;
}
