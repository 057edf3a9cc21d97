// forward_sm90 (device/kernels/forward_sm90.cuh): Hopper.
#pragma once

#include "cuda/kernels/forward_kernel.hpp"
#include "cuda/kernels/forward_sm90/shapes.hpp"

namespace attn::cuda {

ForwardChoice choose_forward_sm90(const ForwardRequest& request);

// A row of the table of shapes, and what the problem adds to it. keys may be fewer in the tiling.
class ForwardSm90 : public ForwardShape {
 public:
  explicit ForwardSm90(const ForwardSm90Shape& of) : shape(of) {}
  void print(const ForwardConfig& config, ConfigText& to) const override;
  std::string declarations(const ForwardConfig& config) const override;
  std::optional<ForwardMaps> maps(const ForwardConfig& config, const Problem& problem,
                                  const Inputs& inputs, const Outputs& outputs) const override;

  const ForwardSm90Shape shape;
  bool drops_by_product = false;  // P times 1 or 0 of a comparison, not `and` with its mask
  bool stores_boxes = false;  // O leaves through places of Q, and rows of a box of it belong to one
                              // sequence and head
  int near_blocks = 2;        // the next tile is dealt when so many are not asked for
  bool gathers = false;       // a tile of keys is two blocks of 64 that its rows see
  int page_rows = 0;          // keys of one box of the copy engine when paged
  bool sums_by_product = false;  // of 8-bit floats: sums of P come with P V
};

// What its relatives share with it.
//
// Declares the products that declarations() specialise.
std::string product_declarations();
// Tensor maps of Q and of K or V, in panels of `panel` columns.
bool encode_q(CUtensorMap& map, const Problem& problem, const ForwardConfig& config,
              const Tensor& q, std::uint32_t panel);
bool encode_k(CUtensorMap& map, const Problem& problem, const ForwardConfig& config,
              const Tensor& k, std::int64_t columns, int box, std::uint32_t panel);
// Of O, of which a warp writes 16 rows at once.
bool encode_o(CUtensorMap& map, const Problem& problem, const Tensor& o);
// Makes `keys` of a tile, and page_rows of a box, such that pages and tiles fit into each other:
// the copy engine writes 8 rows of a swizzle at least, and a tile of a power of two suits common
// page sizes. False where none does.
bool fit_pages(int& keys, int& page_rows, std::int64_t page_size);
// Of ForwardSm90Layout all but Q, K and V: barriers, four tiles at hand, lost tiles.
std::int64_t forward_sm90_barrier_bytes(const ForwardSm90Shape& shape);

}  // namespace attn::cuda
