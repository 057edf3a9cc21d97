// Times of single FLASH_ATTN_EXT operations on ggml's CPU backend and on this one, in turns:
//   GGML_BACKEND_PATH=libggml-attn.so ggml-attn-times [THREADS]
// One row, and 512: keys fill the cache but for the last 40 places, and rows are its last ones
// under a causal mask. 16 rows: of as many sequences, each of which has every sixteenth run of 64
// keys.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

namespace {

struct Shape {
  std::int64_t heads, heads_k, dim;
};

constexpr int kSequences = 16;

// Of the process, which neighbours on a busy machine change little.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void fill(ggml_tensor* t, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> wide(static_cast<std::size_t>(ggml_nelements(t)));
  for (float& x : wide) x = normal(random);
  std::vector<char> stored(ggml_nbytes(t));
  ggml_quantize_chunk(t->type, wide.data(), stored.data(), 0, ggml_nrows(t), t->ne[0], nullptr);
  ggml_backend_tensor_set(t, stored.data(), 0, stored.size());
}

void fill_mask(ggml_tensor* mask) {
  std::vector<ggml_fp16_t> numbers;
  for (std::int64_t i = 0; i < mask->ne[1]; ++i) {
    for (std::int64_t j = 0; j < mask->ne[0]; ++j) {
      const bool seen = mask->ne[1] == kSequences ? j / 64 % kSequences == i
                                                  : j <= mask->ne[0] - 40 - mask->ne[1] + i;
      numbers.push_back(ggml_fp32_to_fp16(seen ? 0.0F : -INFINITY));
    }
  }
  ggml_backend_tensor_set(mask, numbers.data(), 0, ggml_nbytes(mask));
}

class Operation {
 public:
  Operation(ggml_backend_t backend, const Shape& s, ggml_type type, std::int64_t keys,
            std::int64_t rows)
      : backend_(backend), context_(ggml_init({1 << 20, nullptr, true})) {
    // As llama.cpp has them: rows of all heads, seen head by head.
    const auto tensor = [&](ggml_type of, std::int64_t heads, std::int64_t n) {
      ggml_tensor* t = ggml_new_tensor_3d(context_, of, s.dim, heads, n);
      leaves_.push_back(t);
      return ggml_permute(context_, t, 0, 2, 1, 3);
    };
    ggml_tensor* q = tensor(GGML_TYPE_F32, s.heads, rows);
    ggml_tensor* k = tensor(type, s.heads_k, keys);
    ggml_tensor* v = tensor(type, s.heads_k, keys);
    ggml_tensor* mask = ggml_new_tensor_2d(context_, GGML_TYPE_F16, keys, rows);
    ggml_tensor* o = ggml_flash_attn_ext(context_, q, k, v, mask,
                                         1 / std::sqrt(static_cast<float>(s.dim)), 0, 0);
    graph_ = ggml_new_graph(context_);
    ggml_build_forward_expand(graph_, o);
    memory_ = ggml_backend_alloc_ctx_tensors(context_, backend);
    std::mt19937 random(1);
    for (ggml_tensor* leaf : leaves_) fill(leaf, random);
    fill_mask(mask);
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  ~Operation() {
    ggml_backend_buffer_free(memory_);
    ggml_free(context_);
  }

  double seconds() {
    const double start = processor_seconds();
    if (ggml_backend_graph_compute(backend_, graph_) != GGML_STATUS_SUCCESS) std::abort();
    return processor_seconds() - start;
  }

 private:
  ggml_backend_t backend_;
  ggml_context* context_;
  ggml_cgraph* graph_ = nullptr;
  ggml_backend_buffer_t memory_ = nullptr;
  std::vector<ggml_tensor*> leaves_{};
};

ggml_backend_t start(const char* name, int threads) {
  ggml_backend_t backend = ggml_backend_init_by_name(name, nullptr);
  if (backend == nullptr) {
    std::fprintf(stderr, "ggml has no backend %s; GGML_BACKEND_PATH names the file\n", name);
    std::exit(1);
  }
  ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
  const auto set = reinterpret_cast<ggml_backend_set_n_threads_t>(
      ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads"));
  set(backend, threads);
  return backend;
}

void compare(ggml_backend_t ggml, ggml_backend_t attn, const Shape& s, ggml_type type,
             std::int64_t keys, std::int64_t rows) {
  Operation theirs(ggml, s, type, keys, rows), ours(attn, s, type, keys, rows);
  double best[2] = {1e9, 1e9}, spent = 0;
  for (int round = 0; round < 300 && (round < 2 || spent < 1); ++round) {
    const double times[2] = {theirs.seconds(), ours.seconds()};
    for (int i = 0; i < 2; ++i) best[i] = std::min(best[i], times[i]);
    spent += times[0] + times[1];
  }
  std::printf("%2d:%d d%-3d %-5s %5d keys %3d rows  ggml %10.1f us  attn %10.1f us  %5.2f x\n",
              static_cast<int>(s.heads), static_cast<int>(s.heads_k), static_cast<int>(s.dim),
              ggml_type_name(type), static_cast<int>(keys), static_cast<int>(rows), best[0] * 1e6,
              best[1] * 1e6, best[0] / best[1]);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  ggml_backend_load_all();
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  ggml_backend_t ggml = start("CPU", threads), attn = start("attn", threads);
  std::printf("processor time of %d threads, best of several rounds in turns\n", threads);
  for (const Shape& shape : {Shape{9, 3, 64}, Shape{32, 8, 128}}) {
    for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
      for (const std::int64_t rows : {1, kSequences, 512}) {
        for (const std::int64_t keys : {768, 2048, 8192}) {
          compare(ggml, attn, shape, type, keys, rows);
        }
      }
    }
  }
  ggml_backend_free(ggml);
  ggml_backend_free(attn);
}
