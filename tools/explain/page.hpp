// The page of `attn explain`: one HTML file that needs no network.
#pragma once

#include <string>

#include "core/text/embedded_files.hpp"
#include "explain/tile_map.hpp"

namespace attn::explain {

// What tools/explain/web holds.
const core::EmbeddedFiles& web_files();

// The largest page; one that would be larger gets a coarser tile map.
inline constexpr std::size_t kMaxPageBytes = std::size_t{300} * 1000;

// page.html with its style sheets and scripts inside it, and `data` as the element with the id
// "data", which the scripts read.
std::string page(const std::string& title, const Json& data);

}  // namespace attn::explain
