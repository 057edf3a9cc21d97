#include "cuda/heuristics/forward_portable.hpp"

namespace attn::cuda {

bool shape_portable(ForwardConfig&, const Problem&, Arch) { return false; }
std::int64_t forward_portable_shared_bytes(const ForwardConfig&) noexcept { return 0; }

}  // namespace attn::cuda
