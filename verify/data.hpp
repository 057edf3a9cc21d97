// The tensors of a test case, filled with random numbers; NaN wherever nothing may be read.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "attn/run.hpp"
#include "verify/case.hpp"
#include "verify/storage.hpp"

namespace attn::verify {

// Inputs: normal random numbers in the rows in use; NaN in the rest (padding, unused pages, gaps,
// past a length), nonsense in the unused entries of the page table. Outputs and gradients: NaN
// until something writes them. Not copyable: tensors point into it.
class CaseData {
 public:
  CaseData(const Case& c, std::uint64_t seed);
  CaseData(const CaseData&) = delete;
  CaseData& operator=(const CaseData&) = delete;

  Problem problem;
  Inputs inputs;
  Outputs outputs;
  Tensor d_o, d_lse;    // the latter where the hints ask for it
  Gradients gradients;  // no dK and dV when K, V are paged

  OutputGradients d_outputs() const { return {d_o, d_lse}; }

  void poison();  // outputs and gradients become NaN again
  // The name of an output whose surroundings were written, or of an input that changed; empty when
  // all is well.
  std::string damage() const;

  // What a phase reads (true) or writes, as `storage` of each tensor; for copies to a device.
  std::vector<const Storage*> storages(Phase phase, bool read) const;

  // Row-major f64 tensors of the shapes of outputs and gradients, owned by this object; NaN.
  Outputs f64_outputs();
  Gradients f64_gradients();

 private:
  struct Named {
    std::string name;
    Storage storage;
    std::uint64_t checksum = 0;  // of an input
  };
  Tensor input(std::string name, DType dtype, const std::vector<std::int64_t>& shape,
               const Placement& placement = {});
  Tensor output(std::string name, DType dtype, const std::vector<std::int64_t>& shape,
                const Placement& placement = {});
  Tensor f64_like(const Tensor& tensor);
  double uniform();  // [0, 1)
  double normal();
  std::int64_t below(std::int64_t limit);  // 0 .. limit - 1

  // Lengths, page tables and lists of keys: contiguous but where they are strided, of the dtype
  // that the case asks for; and an element of one.
  Tensor integers(std::string name, const std::vector<std::int64_t>& shape,
                  const Placement& placement = {});
  static void set_integer(const Tensor& tensor, std::int64_t offset, std::int64_t value);
  // No page and no key: the ends of the type, and of int64 a small number in the low half.
  std::int64_t far_integer(bool low);
  void make_lengths();
  Tensor make_cu_seqlens(const std::string& name, const std::vector<std::int32_t>& given,
                         std::int64_t seqlen);
  Tensor make_seqused(const std::string& name, const std::vector<std::int32_t>& given,
                      const Tensor& cu_seqlens, std::int64_t seqlen);
  void make_page_table();
  void make_prefix();
  void make_key_list();
  void make_scales();
  double random_scale();
  // How a tensor of the case stores its elements; as_q but for Q, K and V. And the elements of a
  // row.
  CacheType type_of(const Tensor& tensor) const;
  std::int64_t columns(const Tensor& tensor) const;
  // Row `index` of a tensor, [..., head], in its type: of Q, K and V in that of the problem, after
  // drawing its scale where it has one of its own.
  void store_row(const Tensor& tensor, const std::vector<std::int64_t>& index,
                 const std::vector<double>& values);
  void make_rng_state();
  void make_buffers();
  void fill_buffer(const Tensor& tensor);
  std::vector<std::int64_t> shape_like(bool like_q, std::int64_t head_dim) const;
  // Elements of the rows in use <- value(batch, row, head, column).
  using Value =
      std::function<double(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t c)>;
  void fill_rows(const Tensor& tensor, bool like_q, const Value& value);
  // The same for a tensor of the shared prefix, K or V by `of_k`; rows count from its first key,
  // and b is kPrefixBatch.
  void fill_prefix(bool of_k, const Value& value);
  static constexpr std::int64_t kPrefixBatch = 1023;  // no batch entry of a case
  // factor * normal random numbers, made positive or negative if sign is not 0.
  Value random_rows(double factor = 1, int sign = 0);
  void fill_like_lse(const Tensor& tensor);
  void fill_identity();
  void fill_select();
  std::int64_t visible_key(std::int64_t b, std::int64_t i, std::int64_t h);

  Hints hints_;
  Random random_;
  std::int64_t pages_ = 0;  // of the pool, used and unused
  std::list<Named> inputs_, outputs_, extra_;
};

}  // namespace attn::verify
