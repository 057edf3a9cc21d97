// Copies from one GPU's memory to another's.
#pragma once

#include <cstddef>
#include <vector>

#include "attn/tensor.hpp"

namespace attn::dist {

// `from` may be memory of any device, `to` is memory of `device`. Done when it returns.
void copy_between_devices(void* to, Device device, const void* from, std::size_t bytes);
// Has the devices reach each other's memory, where they can; where they cannot, the driver copies
// through the host. Throws where one is no GPU of this machine.
void let_devices_copy(const std::vector<Device>& devices);

}  // namespace attn::dist
