// attn::append_kv on a CPU.
#pragma once

#include "attn/context.hpp"
#include "core/append/append.hpp"

namespace attn::cpu {

// Looks at positions and pages, and writes. Throws as attn::append_kv says.
void append_kv(const core::AppendCall& call, const Context& context);

}  // namespace attn::cpu
