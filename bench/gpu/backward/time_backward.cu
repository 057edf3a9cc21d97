// Checks variants of the backward kernel (cubins that variants.py builds) against float64, and
// times them beside FlashAttention-3 when a library with its C entry points is given.
//
//   time_backward [--fa3 libfa3.so] [--check | --unchecked] [--lengths 4096,...] [--reps N]
//   VARIANT.cubin[@skew[@heads]]...
//
// Speed is 10 b h n^2 d flops (half of it under a causal mask) over the median of three rounds,
// each after a rest and in another order, of all kernels of a backward pass, with L2 overwritten
// before each.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "backward_sm90/layout.cuh"
#include "reference.cuh"

namespace {

using attn::device::BackwardMaps, attn::device::BackwardParams, attn::device::TensorMap;
using reference::Bf16;

[[noreturn]] void fail(const std::string& text) {
  std::printf("FAILED: %s\n", text.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}
unsigned* stuck;  // 4 words that a kernel leaves when a wait does not end
void check(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return;
  if (stuck != nullptr && stuck[3] != 0) {
    std::printf("stuck: barrier at %u, parity %u, thread %u\n", stuck[0], stuck[1], stuck[2]);
  }
  fail(std::string(what) + ": " + cudaGetErrorString(e));
}
void check(CUresult e, const char* what) {
  if (e != CUDA_SUCCESS) fail(std::string(what) + ": driver error " + std::to_string(e));
}
#define CHECK(x) check(x, #x)

// Memory of the device that starts as NaN.
template <class T>
struct Buffer {
  T* data = nullptr;
  long long count;
  explicit Buffer(long long n) : count(n) {
    CHECK(cudaMalloc(&data, std::max<long long>(n, 1) * sizeof(T)));
    poison();
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() { cudaFree(data); }
  void poison() { CHECK(cudaMemset(data, 0xff, count * sizeof(T))); }
  std::vector<T> host() const {
    std::vector<T> h(count);
    CHECK(cudaMemcpy(h.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return h;
  }
};

template <class... Given, class... Taken>
void launch(void (*kernel)(Given...), long long threads, Taken... arguments) {
  kernel<<<static_cast<unsigned>((threads + 255) / 256), 256>>>(arguments...);
  CHECK(cudaGetLastError());
}

struct Data {
  Problem p;
  Buffer<Bf16> q, k, v, o, d_o;
  Buffer<float> lse;
  explicit Data(const Problem& p, unsigned seed)
      : p(p),
        q(p.elements()),
        k(p.elements()),
        v(p.elements()),
        o(p.elements()),
        d_o(p.elements()),
        lse(1LL * p.batch * p.heads * p.seqlen) {
    for (Buffer<Bf16>* t : {&q, &k, &v, &d_o}) {
      launch(reference::fill_normal, t->count, t->data, t->count, seed++);
    }
  }
};

struct Gradients {
  Buffer<Bf16> dq, dk, dv;
  explicit Gradients(const Problem& p) : dq(p.elements()), dk(p.elements()), dv(p.elements()) {}
};

// A tensor of rows of `p.head_dim` columns, in boxes of 64 columns and `rows` rows.
TensorMap encode(const Problem& p, void* data, int rows) {
  const cuuint64_t d = p.head_dim, h = p.heads, n = p.seqlen;
  const cuuint64_t dims[4] = {d, n, h, static_cast<cuuint64_t>(p.batch)};
  const cuuint64_t strides[3] = {2 * h * d, 2 * d, 2 * n * h * d};
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(rows), 1, 1}, steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  CHECK(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, data, dims, strides, box,
                               steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  TensorMap to;
  static_assert(sizeof(to) == sizeof(map));
  std::memcpy(&to, &map, sizeof(to));
  return to;
}

struct Variant {
  std::string name;
  CUfunction prepare, backward, finish;
  int config[7];  // shared memory, kBlockM, kBlockN, kHeadDim, threads, causal, blocks of a cluster
  int skew = 0, heads = 0;

  explicit Variant(const std::string& given) {
    const auto at = given.find('@');
    const std::string path = given.substr(0, at);
    if (at != std::string::npos) std::sscanf(given.c_str() + at, "@%d@%d", &skew, &heads);
    name = path.substr(path.rfind('/') + 1);
    name = name.substr(0, name.rfind('.')) + (at == std::string::npos ? "" : given.substr(at));
    CUmodule module;
    if (cuModuleLoad(&module, path.c_str()) != CUDA_SUCCESS) fail("cannot load " + path);
    CHECK(cuModuleGetFunction(&prepare, module, "prepare"));
    CHECK(cuModuleGetFunction(&backward, module, "backward"));
    CHECK(cuModuleGetFunction(&finish, module, "finish"));
    CUdeviceptr from;
    CHECK(cuModuleGetGlobal(&from, nullptr, module, "backward_config"));
    CHECK(cuMemcpyDtoH(config, from, sizeof(config)));
    CHECK(cuFuncSetAttribute(backward, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, config[0]));
  }
  bool takes(const Problem& p) const {
    return p.head_dim == config[3] && p.causal == (config[5] != 0);
  }

  // What must live as long as runs do.
  struct Run {
    BackwardParams p;
    BackwardMaps maps;
    Buffer<float> lse2, d, dq_sum;
  };
  std::function<void()> bind(const Data& x, const Gradients& to) const {
    const int m = config[1], n = config[2], blocks = (x.p.seqlen + m - 1) / m;
    const long long rows = 1LL * x.p.batch * x.p.heads * blocks * m;
    auto run = std::shared_ptr<Run>(new Run{
        {}, {}, Buffer<float>(rows), Buffer<float>(rows), Buffer<float>(rows * x.p.head_dim)});
    BackwardParams& p = run->p;
    p.o = x.o.data, p.d_o = x.d_o.data, p.lse = x.lse.data;
    p.lse2 = run->lse2.data, p.d = run->d.data, p.dq_sum = run->dq_sum.data;
    p.dq = to.dq.data, p.dk = to.dk.data, p.dv = to.dv.data;
    p.batch = x.p.batch, p.heads = x.p.heads, p.seqlen_q = p.seqlen_k = x.p.seqlen;
    p.query_blocks = blocks, p.key_blocks = (x.p.seqlen + n - 1) / n;
    const int pairs = x.p.batch * x.p.heads;
    const int cluster = config[6];
    p.num_tiles = pairs * ((p.key_blocks + cluster - 1) / cluster);
    // Q, dO and float32 dQ of the heads at hand fill 20 MB.
    const int fit = static_cast<int>(20e6 / (8.0 * x.p.seqlen * x.p.head_dim));
    p.heads_at_once = std::clamp(heads > 0 ? heads : fit, 1, pairs);
    p.skew = skew;
    p.scale = x.p.scale(), p.scale_log2 = p.scale * 1.4426950408889634f;
    p.stuck = stuck;
    run->maps = {encode(x.p, x.q.data, m), encode(x.p, x.k.data, n), encode(x.p, x.v.data, n),
                 encode(x.p, x.d_o.data, m)};
    int sms = 0;
    CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    const unsigned grid = static_cast<unsigned>(std::min(sms / cluster, p.num_tiles) * cluster);
    const unsigned before = static_cast<unsigned>((rows * x.p.head_dim + 2047) / 2048);
    const unsigned after = static_cast<unsigned>(pairs * blocks);
    return [this, run, grid, before, after] {
      void* arguments[2] = {&run->p, &run->maps};
      CHECK(cuLaunchKernel(prepare, before, 1, 1, 256, 1, 1, 0, nullptr, arguments, nullptr));
      CHECK(cuLaunchKernel(backward, grid, 1, 1, config[4], 1, 1, config[0], nullptr, arguments,
                           nullptr));
      CHECK(cuLaunchKernel(finish, after, 1, 1, 128, 1, 1, 0, nullptr, arguments, nullptr));
    };
  }
};

// FlashAttention-3 behind C entry points.
struct Peer {
  using Forward = int (*)(void*, void*, void*, void*, void*, int, int, int, int, int, int, int,
                          float, void*, void*);
  using Backward = int (*)(void*, void*, void*, void*, void*, void*, void*, void*, void*, void*,
                           void*, void*, void*, void*, void*, void*, void*, int, int, int, int, int,
                           int, int, float, int, void*);
  using Sizes = int (*)(int, int, int, int, int, int, int, int, long long*);
  Forward forward;
  Backward backward;
  Sizes sizes;
  explicit Peer(const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW);
    if (library == nullptr) fail(dlerror());
    forward = reinterpret_cast<Forward>(dlsym(library, "fa3_fwd"));
    backward = reinterpret_cast<Backward>(dlsym(library, "fa3_bwd"));
    sizes = reinterpret_cast<Sizes>(dlsym(library, "fa3_bwd_sizes"));
  }
  void run_forward(Data& x) const {
    Buffer<int> semaphore(1);
    const Problem& p = x.p;
    if (forward(x.q.data, x.k.data, x.v.data, x.o.data, x.lse.data, p.batch, p.seqlen, p.seqlen,
                p.heads, p.heads, p.head_dim, p.causal, p.scale(), semaphore.data, nullptr) != 0) {
      fail("fa3_fwd");
    }
    CHECK(cudaDeviceSynchronize());
  }
  std::function<void()> bind(const Data& x, const Gradients& to) const {
    const Problem& p = x.p;
    long long bytes[8];
    if (sizes(p.batch, p.seqlen, p.seqlen, p.heads, p.heads, p.head_dim, p.causal, 0, bytes) != 0) {
      fail("fa3_bwd_sizes");
    }
    std::vector<std::shared_ptr<Buffer<char>>> s;
    for (long long b : bytes) s.push_back(std::make_shared<Buffer<char>>(b));
    return [this, s, p, &x, &to] {
      if (backward(x.q.data, x.k.data, x.v.data, x.o.data, x.lse.data, x.d_o.data, to.dq.data,
                   to.dk.data, to.dv.data, s[0]->data, s[1]->data, s[2]->data, s[3]->data, nullptr,
                   nullptr, nullptr, nullptr, p.batch, p.seqlen, p.seqlen, p.heads, p.heads,
                   p.head_dim, p.causal, p.scale(), 0, nullptr) != 0) {
        fail("fa3_bwd");
      }
    };
  }
};

// Root of the sum of squares of the difference over that of the second; infinite with a NaN.
template <class T>
double difference(const std::vector<Bf16>& a, const std::vector<T>& b) {
  double above = 0, below = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = __bfloat162float(a[i]), y = static_cast<double>(b[i]);
    above += (x - y) * (x - y);
    below += y * y;
  }
  const double value = std::sqrt(above / below);
  return std::isfinite(value) ? value : INFINITY;
}
std::vector<float> widened(const std::vector<Bf16>& x) {
  std::vector<float> y;
  for (const Bf16& v : x) y.push_back(__bfloat162float(v));
  return y;
}

// Against float64; returns the number of wrong gradients.
int check_all(const std::vector<std::unique_ptr<Variant>>& variants, const Peer* peer,
              const Problem& p, unsigned seed) {
  Data x(p, seed);
  const long long n = p.seqlen, pairs = 1LL * p.batch * p.heads;
  std::vector<double> expected[3];
  {
    Buffer<double> s(pairs * n * n), dp(pairs * n * n), out(p.elements());
    launch(reference::products, s.count, p, x.q.data, x.k.data, s.data);
    launch(reference::products, dp.count, p, x.d_o.data, x.v.data, dp.data);
    launch(reference::rows, pairs * n, p, s.data, dp.data, x.lse.data);
    launch(reference::sums, out.count, p, s.data, false, 1.0, x.v.data, out.data);
    launch(reference::round_to, out.count, out.data, x.o.data, out.count);
    launch(reference::sums, out.count, p, dp.data, false, p.scale(), x.k.data, out.data);
    expected[0] = out.host();
    launch(reference::sums, out.count, p, dp.data, true, p.scale(), x.q.data, out.data);
    expected[1] = out.host();
    launch(reference::sums, out.count, p, s.data, true, 1.0, x.d_o.data, out.data);
    expected[2] = out.host();
  }
  int wrong = 0;
  const auto report = [&](const std::string& name, const Gradients& g) {
    const double e[3] = {difference(g.dq.host(), expected[0]), difference(g.dk.host(), expected[1]),
                         difference(g.dv.host(), expected[2])};
    // bf16 P and dS, and results rounded to bf16, give about 0.003 to 0.004.
    const bool good = std::max({e[0], e[1], e[2]}) < 6e-3;
    wrong += good ? 0 : 1;
    std::printf("%s b%d h%d n%d d%d %s  dq %.5f dk %.5f dv %.5f  %s\n", good ? "ok   " : "WRONG",
                p.batch, p.heads, p.seqlen, p.head_dim, p.causal ? "causal" : "full", e[0], e[1],
                e[2], name.c_str());
    std::fflush(stdout);
  };
  if (peer != nullptr) {
    Gradients g(p);
    peer->bind(x, g)();
    CHECK(cudaDeviceSynchronize());
    report("FlashAttention-3", g);
  }
  for (const auto& v : variants) {
    if (!v->takes(p)) continue;
    Gradients g(p);
    v->bind(x, g)();
    CHECK(cudaDeviceSynchronize());
    report(v->name, g);
  }
  return wrong;
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<long>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

void time_all(const std::vector<std::unique_ptr<Variant>>& variants, const Peer& peer,
              const Problem& p, int reps) {
  Data x(p, 7);
  peer.run_forward(x);
  Gradients theirs(p), ours(p);
  struct Call {
    std::string name;
    std::function<void()> run;
    std::vector<double> rounds;
    double apart;
  };
  std::vector<Call> calls;
  calls.push_back({"FlashAttention-3", peer.bind(x, theirs), {}, 0});
  calls[0].run();
  CHECK(cudaDeviceSynchronize());
  const std::vector<float> t[3] = {widened(theirs.dq.host()), widened(theirs.dk.host()),
                                   widened(theirs.dv.host())};
  for (const auto& v : variants) {
    if (!v->takes(p)) continue;
    Call c{v->name, v->bind(x, ours), {}, 0};
    for (Buffer<Bf16>* b : {&ours.dq, &ours.dk, &ours.dv}) b->poison();
    c.run();
    CHECK(cudaDeviceSynchronize());
    c.apart = std::max({difference(ours.dq.host(), t[0]), difference(ours.dk.host(), t[1]),
                        difference(ours.dv.host(), t[2])});
    calls.push_back(c);
  }
  Buffer<char> flush(256 << 20);
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::mt19937 random(1);
  for (int round = 0; round < 3; ++round) {
    std::vector<Call*> order;
    for (Call& c : calls) order.push_back(&c);
    std::shuffle(order.begin(), order.end(), random);
    for (Call* c : order) {
      CHECK(cudaDeviceSynchronize());
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      std::vector<double> times;
      for (int i = 0; i < reps; ++i) {
        CHECK(cudaMemsetAsync(flush.data, 0, flush.count));
        CHECK(cudaEventRecord(begin));
        c->run();
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (i >= reps / 4) times.push_back(ms);
      }
      c->rounds.push_back(median(times));
    }
  }
  const double flops =
      10.0 * p.batch * p.heads * p.seqlen * p.seqlen * p.head_dim * (p.causal ? 0.5 : 1);
  const double peer_ms = median(calls[0].rounds);
  for (const Call& c : calls) {
    const double ms = median(c.rounds);
    std::printf(
        "b%d h%d n%d d%d %s  %7.1f TFLOP/s  %.3f of FA3  [%.4f %.4f %.4f ms]  differs %.5f  %s\n",
        p.batch, p.heads, p.seqlen, p.head_dim, p.causal ? "causal" : "full  ", flops / ms * 1e-9,
        peer_ms / ms, c.rounds[0], c.rounds[1], c.rounds[2], c.apart, c.name.c_str());
  }
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** words) {
  std::string fa3;
  std::vector<int> lengths = {4096};
  int reps = 16;
  bool timed = true, checked = true;
  std::vector<std::string> names;
  for (int i = 1; i < count; ++i) {
    const std::string w = words[i];
    const auto value = [&] { return std::string(i + 1 < count ? words[++i] : ""); };
    if (w == "--fa3") {
      fa3 = value();
    } else if (w == "--reps") {
      reps = std::atoi(value().c_str());
    } else if (w == "--check") {
      timed = false;
    } else if (w == "--unchecked") {  // variants that are wrong on purpose
      checked = false;
    } else if (w == "--lengths") {
      lengths.clear();
      const std::string list = value();
      for (std::size_t at = 0; at < list.size(); at = list.find(',', at) + 1) {
        lengths.push_back(std::atoi(list.c_str() + at));
        if (list.find(',', at) == std::string::npos) break;
      }
    } else {
      names.push_back(w);
    }
  }
  CHECK(cudaFree(nullptr));
  CHECK(cudaHostAlloc(&stuck, 16, cudaHostAllocMapped));
  std::memset(stuck, 0, 16);
  std::unique_ptr<Peer> peer;
  if (!fa3.empty()) peer = std::make_unique<Peer>(fa3);
  std::vector<std::unique_ptr<Variant>> variants;
  for (const std::string& name : names) variants.push_back(std::make_unique<Variant>(name));

  int wrong = 0;
  for (const int d : {64, 128}) {
    for (const bool causal : {false, true}) {
      const auto any = std::any_of(variants.begin(), variants.end(), [&](const auto& v) {
        return v->takes({1, 1, 1, d, causal});
      });
      if (!any) continue;
      unsigned seed = 100;
      for (const Problem& p : {Problem{1, 1, 128, d, causal}, Problem{2, 3, 512, d, causal},
                               Problem{1, 2, 777, d, causal}, Problem{8, 8, 640, d, causal}}) {
        if (checked) wrong += check_all(variants, peer.get(), p, seed += 10);
      }
      if (!timed || !peer || wrong > 0) continue;
      for (const int n : lengths) {
        time_all(variants, *peer, {std::max(1, 16384 / n), 2048 / d, n, d, causal}, reps);
      }
    }
  }
  std::printf("%d wrong\n", wrong);
  return wrong > 0 ? 1 : 0;
}
