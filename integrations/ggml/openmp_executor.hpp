// attn's loops on the threads of OpenMP, which ggml runs on as well: threads of our own would wait
// for those of ggml, which spin for a while after each of its operations.
#pragma once

#include <memory>

#include "attn/context.hpp"

namespace attn_ggml {

// Workers of the team that OpenMP keeps for the calling thread; where this is compiled without
// OpenMP, attn's own threads.
std::shared_ptr<attn::Executor> make_executor(int threads);

}  // namespace attn_ggml
