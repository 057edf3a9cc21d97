// What a mask leaves of a block of keys.
#pragma once

namespace attn::device {

enum class Coverage : unsigned { empty, full, mixed };

}  // namespace attn::device
