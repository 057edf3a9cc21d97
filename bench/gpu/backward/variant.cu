// One variant of the backward kernel as a cubin; constants come from the command line
// (variants.py).
#include "around.cuh"
#include "backward_sm90.cuh"

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif

namespace {
struct Config {
  static constexpr int kHeadDim = HEAD_DIM, kBlockM = 64, kBlockN = 128;
  static constexpr bool kCausal = CAUSAL != 0;
  static constexpr int kStagesQ = STAGES_Q, kStagesP = STAGES_P;
  static constexpr attn::device::Add kAdd = attn::device::Add::ADD;
  static constexpr int kProducerRegisters = 24, kScoreRegisters = SCORE_REGISTERS;
  static constexpr int kGradientRegisters = (488 - SCORE_REGISTERS) / 16 * 8;
  static constexpr int kLeaveOut = LEAVE_OUT;
  static constexpr bool kReadersFence = READERS_FENCE != 0;
  static constexpr int kLateProduct = LATE_PRODUCT, kPolynomial = POLYNOMIAL, kPiece = PIECE;
  static constexpr bool kBounded = BOUNDED != 0;
};
}  // namespace

using namespace attn::device;

// Bytes of shared memory, kBlockM, kBlockN, kHeadDim, threads, kCausal.
extern "C" __device__ const int backward_config[6] = {BackwardSm90Layout<Config>::kBytes,
                                                      Config::kBlockM,
                                                      Config::kBlockN,
                                                      Config::kHeadDim,
                                                      512,
                                                      Config::kCausal};

extern "C" __global__ void __launch_bounds__(512, 1)
    backward(const __grid_constant__ BackwardParams p, const __grid_constant__ BackwardMaps maps) {
  backward_sm90<Config>(p, maps);
}
extern "C" __global__ void __launch_bounds__(256)
    prepare(const __grid_constant__ BackwardParams p) {
  prepare_backward<Config>(p);
}
extern "C" __global__ void __launch_bounds__(128) finish(const __grid_constant__ BackwardParams p) {
  finish_backward<Config>(p);
}
