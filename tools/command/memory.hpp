// How much memory a call takes at most.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace attn::command {

// Runs `call` and returns by how many bytes the resident memory of the process grew at most
// meanwhile; nothing where the kernel does not tell (Linux does). Free memory held by the allocator
// is given back before, so that memory used again counts like new; the kernel counts pages, and in
// batches of some dozens a thread, so the result is good to a few hundred KiB. Memory that the
// call's results need must have been touched before.
std::optional<std::int64_t> peak_memory(const std::function<void()>& call);

}  // namespace attn::command
