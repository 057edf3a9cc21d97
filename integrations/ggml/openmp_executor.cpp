#include "openmp_executor.hpp"

#ifdef _OPENMP
#include <omp.h>

#include <atomic>
#include <exception>
#endif

namespace attn_ggml {

#ifdef _OPENMP
namespace {

class OpenMpExecutor final : public attn::Executor {
 public:
  explicit OpenMpExecutor(int threads) : threads_(threads) {}

  int concurrency() const noexcept override { return threads_; }

  void parallel_for(std::int64_t count,
                    const std::function<void(std::int64_t, int)>& body) override {
    if (count == 1 || threads_ == 1) {
      for (std::int64_t i = 0; i < count; ++i) body(i, 0);
      return;
    }
    std::atomic<std::int64_t> next{0};
    std::exception_ptr failure;
    // As many threads each time: OpenMP ends and starts threads where the number changes.
#pragma omp parallel num_threads(threads_)
    {
      try {
        const int worker = omp_get_thread_num();
        for (std::int64_t i = next++; i < count; i = next++) body(i, worker);
      } catch (...) {
        next = count;
#pragma omp critical(attn_ggml_failure)
        failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
  }

 private:
  int threads_;
};

}  // namespace

std::shared_ptr<attn::Executor> make_executor(int threads) {
  return std::make_shared<OpenMpExecutor>(threads);
}
#else
std::shared_ptr<attn::Executor> make_executor(int threads) {
  return attn::shared_executor(threads);
}
#endif

}  // namespace attn_ggml
