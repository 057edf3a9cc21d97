// A variant of the backward kernel: a cubin of variants.py, loaded and bound to tensors.
#pragma once

#include <cstring>
#include <functional>
#include <memory>

#include "backward_sm90/layout.cuh"
#include "data.cuh"

using attn::device::BackwardMaps, attn::device::BackwardParams, attn::device::TensorMap;

// A tensor of rows of `p.head_dim` columns, in boxes of 64 columns and `rows` rows.
inline TensorMap encode(const Problem& p, void* data, int rows) {
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
  int config[6];  // shared memory, kBlockM, kBlockN, kHeadDim, threads, causal
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
    std::shared_ptr<Buffer<int>> tiles;
  };
  // Tiles for each of `takers`, as a dealer gives them to whoever is done first, when a tile takes
  // as long as it has blocks of queries and a bit. Of a head there are `each`, the next always
  // shorter by `shorter` with a causal mask.
  std::vector<std::vector<int>> deal(const BackwardParams& p, int each, int shorter,
                                     int takers) const {
    std::vector<std::vector<int>> dealt(static_cast<std::size_t>(takers));
    std::vector<double> busy(static_cast<std::size_t>(takers), 0.0);
    const int pairs = p.batch * p.heads;
    for (int i = 0; i < pairs * each; ++i) {
      const int inside = i % (p.heads_at_once * each), group = i / (p.heads_at_once * each);
      const int heads_here = std::min(p.heads_at_once, pairs - group * p.heads_at_once);
      const int block = config[5] != 0 ? inside / heads_here : 0;
      const auto next = std::min_element(busy.begin(), busy.end());
      *next += std::max(1, p.query_blocks - block * shorter) + 1.5;
      dealt[static_cast<std::size_t>(next - busy.begin())].push_back(i);
    }
    return dealt;
  }
  std::function<void()> bind(const Data& x, const Gradients& to) const {
    const int m = config[1], n = config[2], blocks = (x.p.seqlen + m - 1) / m;
    const long long rows = 1LL * x.p.batch * x.p.heads * blocks * m;
    auto run = std::shared_ptr<Run>(new Run{{},
                                            {},
                                            Buffer<float>(rows),
                                            Buffer<float>(rows),
                                            Buffer<float>(rows * x.p.head_dim),
                                            nullptr});
    BackwardParams& p = run->p;
    p.o = x.o.data, p.d_o = x.d_o.data, p.lse = x.lse.data;
    p.lse2 = run->lse2.data, p.d = run->d.data, p.dq_sum = run->dq_sum.data;
    p.dq = to.dq.data, p.dk = to.dk.data, p.dv = to.dv.data;
    p.batch = x.p.batch, p.heads = x.p.heads, p.seqlen_q = p.seqlen_k = x.p.seqlen;
    p.query_blocks = blocks, p.key_blocks = (x.p.seqlen + n - 1) / n;
    const int pairs = x.p.batch * x.p.heads;
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
    const auto dealt = deal(p, p.key_blocks, n / m, std::min(sms, pairs * p.key_blocks));
    const unsigned grid = static_cast<unsigned>(dealt.size());
    for (const auto& list : dealt) {
      p.most_tiles = std::max(p.most_tiles, static_cast<int>(list.size()) + 1);
    }
    std::vector<int> flat;
    for (const auto& list : dealt) {
      flat.insert(flat.end(), list.begin(), list.end());
      flat.resize(flat.size() + p.most_tiles - list.size(), -1);
    }
    run->tiles = std::make_shared<Buffer<int>>(static_cast<long long>(flat.size()));
    CHECK(cudaMemcpy(run->tiles->data, flat.data(), flat.size() * 4, cudaMemcpyHostToDevice));
    p.tiles = run->tiles->data;
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
