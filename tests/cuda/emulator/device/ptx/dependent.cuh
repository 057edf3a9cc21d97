#pragma once

namespace attn::device {

inline void wait_for_dependencies() {}
inline void launch_dependents() {}

}  // namespace attn::device
