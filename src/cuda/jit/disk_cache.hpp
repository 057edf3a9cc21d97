// Compiled kernels in a folder that processes share.
#pragma once

#include <optional>
#include <string>

#include "core/platform/platform.hpp"

namespace attn::cuda {

using DiskCache = core::PrivateFolder;

// ATTN_CACHE_DIR, else attn in XDG_CACHE_HOME or in .cache of the home folder. Nothing where
// ATTN_CACHE_DIR is empty, which turns the cache off, or where there is no home.
std::optional<std::string> default_cache_folder();

}  // namespace attn::cuda
