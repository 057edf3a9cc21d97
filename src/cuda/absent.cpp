// In place of the CUDA backend where it is left out (ATTN_CUDA=OFF): every call says so.
#include <string>

#include "attn/error.hpp"
#include "cuda/append_kv.hpp"
#include "cuda/block_list.hpp"
#include "cuda/cuda.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"
#include "cuda/dropout_mask.hpp"
#include "cuda/matmul/matmul.hpp"
#include "cuda/matmul/matmul_config.hpp"
#include "cuda/merge.hpp"
#include "cuda/quantize.hpp"
#include "cuda/softmax.hpp"

namespace attn::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::unavailable,
              "device is a GPU; accepted is the CPU, as this library was built without CUDA "
              "(ATTN_CUDA=OFF)");
}

}  // namespace

ContextGuard::ContextGuard(int) { refuse(); }
ContextGuard::~ContextGuard() { static_cast<void>(outer_), static_cast<void>(pushed_); }

Plan plan(const Problem&, Phase, const PlanOptions&, const Context&) { refuse(); }
void forward(const Plan&, const Inputs&, const Outputs&, const Context&) { refuse(); }
void backward(const Plan&, const Inputs&, const Outputs&, const OutputGradients&, const Gradients&,
              const Context&) {
  refuse();
}

void check_memory(const core::ArgumentCheck&, std::span<const core::NamedTensor>, int) { refuse(); }
void check_memory(const Problem&, std::span<const core::NamedTensor>, int) { refuse(); }

MatmulPlan plan_matmul(const MatmulProblem&, const MatmulOptions&) { refuse(); }
void matmul(const MatmulPlan&, const MatmulInputs&, const Tensor&, const Context&) { refuse(); }
std::vector<std::string> cuda_matmul_rungs() { return {}; }
bool is_cuda_matmul_rung(std::string_view) noexcept { return false; }

void append_kv(const core::AppendCall&, const Context&) { refuse(); }
void merge(const std::vector<Outputs>&, const Outputs&, const Context&) { refuse(); }
void quantize(const QuantizeCall&, const Context&) { refuse(); }
void softmax(const SoftmaxCall&, const Context&) { refuse(); }
void write_block_mask(const Tensor&, const Tensor&, const Context&) { refuse(); }
void dropout_mask(const Problem&, const Tensor&, const Tensor&, const Context&) { refuse(); }

}  // namespace attn::cuda
