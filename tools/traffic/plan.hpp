// What a plan's own tiles load and store, counted tile by tile with the classification that the
// run uses.
#pragma once

#include <string>

#include "attn/plan.hpp"
#include "cuda/jit/compile.hpp"
#include "traffic/traffic.hpp"

namespace attn::traffic {

struct PlanTraffic {
  Traffic traffic;
  Backend backend = Backend::cpu;
  Algorithm algorithm = Algorithm::automatic;
  std::string target;  // instruction set, or kernel and architecture
  std::int64_t block_q = 0, block_k = 0;
  std::int64_t rows_per_task = 0;
  std::int32_t num_splits = 1;
};

// Counts, for a plan of the CPU backend, what its tasks move between memory (or the last-level
// cache) and the scratch that a worker keeps in its L2. K, V blocks are 64 keys; rows of a GQA
// group share them. Sequences have their full lengths; buffers of the mask without data leave every
// tile visible. Deterministic for one number of threads: with more than one, the last tasks are
// divided.
PlanTraffic cpu_plan_traffic(const Plan& plan);

// A pass on a GPU of this architecture with `multiprocessors` of them: what blocks of threads load
// into and store from shared memory and registers, that is, what the L2 cache serves. Needs no GPU.
// algorithm and kernel: as in PlanOptions. Throws Error(unsupported) for backward kernels other
// than backward_flash_attention, backward_standard, backward_sm80 and backward_sm90 without pairs,
// and as make_plan does.
PlanTraffic cuda_plan_traffic(const Problem& problem, Phase phase, cuda::Arch arch,
                              int multiprocessors, Algorithm algorithm = Algorithm::automatic,
                              const std::string& kernel = {});
// Counts the same of a backward pass.
PlanTraffic cuda_backward_traffic(const Problem& problem, cuda::Arch arch, Algorithm algorithm,
                                  const std::string& kernel);

}  // namespace attn::traffic
