// Memory of the device, errors, and the tensors of a problem.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "reference.cuh"

using reference::Bf16;

[[noreturn]] inline void fail(const std::string& text) {
  std::printf("FAILED: %s\n", text.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}
inline unsigned* stuck;  // 4 words that a kernel leaves when a wait does not end
inline void check(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return;
  if (stuck != nullptr && stuck[3] != 0) {
    std::printf("stuck: barrier at %u, parity %u, thread %u\n", stuck[0], stuck[1], stuck[2]);
  }
  fail(std::string(what) + ": " + cudaGetErrorString(e));
}
inline void check(CUresult e, const char* what) {
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
