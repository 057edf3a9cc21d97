// Attention and its gradients in float64 on the GPU, by the definition: all of S, dP and dS in
// memory. For problems of up to some thousand rows.
#pragma once

#include <cuda_bf16.h>

#include <vector>

struct Problem {
  int batch, heads, seqlen, head_dim;
  bool causal;
  __host__ __device__ long long elements() const { return 1LL * batch * seqlen * heads * head_dim; }
  __host__ __device__ float scale() const { return 1.f / sqrtf(static_cast<float>(head_dim)); }
};

namespace reference {

using Bf16 = __nv_bfloat16;

// Row `row` of (batch, head) pair `pair` of a tensor [batch, seqlen, heads, head_dim].
__host__ __device__ inline long long row_at(const Problem& p, long long pair, long long row) {
  return ((pair / p.heads * p.seqlen + row) * p.heads + pair % p.heads) * p.head_dim;
}

// out[pair][i][j] = sum of a row i times b row j.
__global__ void products(Problem p, const Bf16* a, const Bf16* b, double* out) {
  const long long at = 1LL * blockIdx.x * blockDim.x + threadIdx.x, n = p.seqlen;
  if (at >= n * n * p.batch * p.heads) return;
  const long long pair = at / (n * n), i = at / n % n, j = at % n;
  const Bf16 *x = a + row_at(p, pair, i), *y = b + row_at(p, pair, j);
  double sum = 0;
  for (int c = 0; c < p.head_dim; ++c) {
    sum +=
        static_cast<double>(__bfloat162float(x[c])) * static_cast<double>(__bfloat162float(y[c]));
  }
  out[at] = sum;
}

// s: S before, P after. dp: dP before, dS after. One thread a row.
__global__ void rows(Problem p, double* s, double* dp, float* lse) {
  const long long at = 1LL * blockIdx.x * blockDim.x + threadIdx.x, n = p.seqlen;
  if (at >= n * p.batch * p.heads) return;
  const long long keys = p.causal ? at % n + 1 : n;
  double *x = s + at * n, *y = dp + at * n, most = -1e300, sum = 0, d = 0;
  for (long long j = 0; j < keys; ++j) most = fmax(most, x[j] *= p.scale());
  for (long long j = 0; j < keys; ++j) sum += exp(x[j] - most);
  for (long long j = 0; j < n; ++j) x[j] = j < keys ? exp(x[j] - most) / sum : 0;
  for (long long j = 0; j < keys; ++j) d += x[j] * y[j];
  for (long long j = 0; j < n; ++j) y[j] = x[j] * (y[j] - d);
  lse[at] = static_cast<float>(most + log(sum));
}

// out row i = factor * sum over j of weight(i, j) b row j. transposed: weight(j, i).
__global__ void sums(Problem p, const double* weights, bool transposed, double factor,
                     const Bf16* b, double* out) {
  const long long at = 1LL * blockIdx.x * blockDim.x + threadIdx.x, n = p.seqlen;
  if (at >= p.elements()) return;
  const long long c = at % p.head_dim, i = at / p.head_dim % n, pair = at / p.head_dim / n;
  const double* w = weights + pair * n * n;
  double sum = 0;
  for (long long j = 0; j < n; ++j) {
    sum += (transposed ? w[j * n + i] : w[i * n + j]) *
           static_cast<double>(__bfloat162float(b[row_at(p, pair, j) + c]));
  }
  out[row_at(p, pair, i) + c] = factor * sum;
}

__global__ void round_to(const double* from, Bf16* to, long long count) {
  const long long at = 1LL * blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) to[at] = __double2bfloat16(from[at]);
}

// Normal numbers, rounded; another sequence for each seed.
__global__ void fill_normal(Bf16* to, long long count, unsigned seed) {
  const long long at = 1LL * blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const auto hash = [](unsigned long long x) {  // splitmix64
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
  };
  const unsigned long long bits = hash(hash(seed) + static_cast<unsigned long long>(at));
  const float u = (static_cast<float>(bits >> 40) + 1) * 0x1p-24f;
  const float v = static_cast<float>(bits & 0xffffff) * 0x1p-24f;
  to[at] = __float2bfloat16(sqrtf(-2 * logf(u)) * cospif(2 * v));
}

}  // namespace reference
