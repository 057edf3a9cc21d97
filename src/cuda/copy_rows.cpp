#include "cuda/copy_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/ceil_div.hpp"
#include "cuda/codegen/config_text.hpp"
#include "cuda/codegen/source.hpp"
#include "cuda/device/kernels/copy_rows_params.cuh"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"
#include "cuda/jit/kernels_by_key.hpp"
#include "cuda/row_axis.hpp"

namespace attn::cuda {
namespace {

constexpr int kWidest = 16;  // bytes of a load

// All that the source depends on.
struct CopyRowsConfig {
  int packet;  // bytes of a load
  bool operator==(const CopyRowsConfig&) const = default;
};

Source copy_rows_source(const CopyRowsConfig& config) {
  ConfigText text(DType::f32);  // copies read no element
  text.number("kPacket", config.packet);
  Source source;
  source.name = fmt::format("copy_rows of {} bytes", config.packet);
  source.entry = "attn_copy_rows";
  source.text = fmt::format(
      "#include \"ptx/math.cuh\"\n#include \"kernels/copy_rows.cuh\"\n"
      "namespace attn::device {{\n{}}}\n"
      "extern \"C\" __global__ void __launch_bounds__(attn::device::kCopyRowsThreads)\n"
      "attn_copy_rows(const __grid_constant__ attn::device::CopyRowsParams p) {{\n"
      "  attn::device::CopyRows<attn::device::Config>::run(p);\n"
      "}}\n",
      text.text());
  return source;
}

device::ByteStrides byte_strides(const Tensor& t) {
  const std::size_t rows = axis_of_rows(t);
  const auto size = static_cast<std::int64_t>(size_of(t.dtype));
  return {rows == 0 ? 0 : t.strides[0] * size, t.strides[rows] * size, t.strides[rows + 1] * size};
}

// Whether a row's heads lie side by side, so that they are copied as one.
bool has_whole_rows(const Tensor& t) {
  const std::size_t heads = axis_of_rows(t) + 1;
  return t.shape[heads] == 1 || t.strides[heads] == t.shape[heads + 1];
}

device::RowCopy row_copy(const RowCopy& copy, int packet) {
  const std::size_t rows = axis_of_rows(copy.from);
  device::RowCopy c{};
  c.from = copy.from.data;
  c.to = copy.to.data;
  c.from_strides = byte_strides(copy.from);
  c.to_strides = byte_strides(copy.to);
  c.rows = copy.from.shape[rows];
  c.all_rows = c.rows * (rows == 0 ? 1 : copy.from.shape[0]);
  c.heads = static_cast<int>(copy.from.shape[rows + 1]);
  c.packets = static_cast<int>(copy.from.shape[rows + 2]) *
              static_cast<int>(size_of(copy.from.dtype)) / packet;
  if (has_whole_rows(copy.from) && has_whole_rows(copy.to)) {
    c.packets *= c.heads;
    c.heads = 1;
  }
  c.lanes = static_cast<int>(std::min<unsigned>(
      std::bit_ceil(static_cast<unsigned>(c.heads * c.packets)), device::kCopyRowsThreads));
  return c;
}

}  // namespace

void copy_rows(std::span<const RowCopy> copies, const Context& context) {
  int packet = kWidest;
  for (const RowCopy& copy : copies) {
    if (copy.from.size() == 0) continue;
    const auto size = static_cast<int>(size_of(copy.from.dtype));
    const auto row_bytes = copy.from.shape[axis_of_rows(copy.from) + 2] * size;
    const bool wide = alignment_of(copy.from) % kWidest == 0 &&
                      alignment_of(copy.to) % kWidest == 0 && row_bytes % kWidest == 0;
    if (!wide) packet = std::min(packet, size);
  }
  // More blocks than any GPU runs at once; past them blocks go on.
  constexpr std::int64_t kMostBlocks = 1 << 11, kRowsOfThread = 4;
  for (std::size_t i = 0; i < copies.size();) {
    device::CopyRowsParams p{};
    LaunchConfig launch;
    launch.block = device::kCopyRowsThreads;
    launch.grid[0] = 1;
    for (; i < copies.size() && p.count < device::kMostRowCopies; ++i) {
      if (copies[i].from.size() == 0) continue;
      const device::RowCopy& c = p.copies[p.count++] = row_copy(copies[i], packet);
      const std::int64_t threads = c.all_rows * c.lanes;
      launch.grid[0] = std::clamp<std::int64_t>(
          core::ceil_div(threads, device::kCopyRowsThreads * kRowsOfThread), launch.grid[0],
          kMostBlocks);
    }
    if (p.count == 0) return;
    launch.grid[0] *= p.count;
    const int ordinal = copies.front().to.device.index;
    const ContextGuard guard(ordinal);
    std::array<void*, 1> arguments{&p};
    kernels_by_key<CopyRowsConfig>()
        .get(ordinal, {packet}, context, [&] { return copy_rows_source({packet}); })
        .launch(launch, context.stream, arguments.data());
  }
}

bool can_read(int device, int other) {
  if (device == other) return true;
  int can = 0;
  CUdevice here{}, there{};
  check(api().cuDeviceGet(&here, device), "cuDeviceGet");
  check(api().cuDeviceGet(&there, other), "cuDeviceGet");
  check(api().cuDeviceCanAccessPeer(&can, here, there), "cuDeviceCanAccessPeer");
  return can != 0;
}

}  // namespace attn::cuda
