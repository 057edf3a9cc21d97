// Appending to caches.
#pragma once

#include "attn/context.hpp"
#include "core/append/append.hpp"
#include "cuda/codegen/source.hpp"

namespace attn::cuda {

// attn::append_kv on a GPU, of a call that was checked: puts it into context.stream. Throws
// Error(unavailable | unsupported | device).
void append_kv(const core::AppendCall& call, const Context& context);

// Its kernel, one for all calls whose parts have these dtypes, head sizes and treatments.
Source append_kv_source(const core::AppendCall& call);

}  // namespace attn::cuda
