// FlashAttention-3's backward pass, for comparison.
#pragma once

#include <dlfcn.h>

#include <functional>
#include <memory>

#include "data.cuh"

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
