#include "explain/source_lines.hpp"

#include <algorithm>
#include <string>

#include "cuda/codegen/source.hpp"

namespace attn::explain {
namespace {

constexpr std::string_view kSoftmax = "kernels/softmax.cuh";
constexpr std::string_view kStandard = "kernels/forward_standard.cuh";
constexpr std::string_view kFlash = "kernels/forward_flash_attention.cuh";
constexpr std::string_view kFlash2 = "kernels/forward_sm80.cuh";
constexpr std::string_view kCombine = "kernels/combine.cuh";
constexpr std::string_view kBackwardRows = "kernels/backward_one_pass_rows.cuh";
constexpr std::string_view kBackward = "kernels/backward_sm80.cuh";

std::vector<SourceLine> all_lines() {
  std::vector<SourceLine> lines{
      {"three_pass", "scores", kStandard, "void scores() const"},
      {"three_pass", "maximum", kSoftmax, "of.m = fmaxf(of.m, element)"},
      {"three_pass", "sum", kSoftmax, "of.l += exact::attn_exp(element - from)"},
      {"three_pass", "divide", kSoftmax, "void store_y("},
      {"three_pass", "product", kStandard, "void values() const"},
      {"online", "scores", kStandard, "void scores() const"},
      {"online", "begin", kSoftmax, "RowSums of{minus_infinity(), 0}"},
      {"online", "maximum", kSoftmax, "if (x > of.m) {"},
      {"online", "sum", kSoftmax, "of.l += exact::attn_exp(x - of.m)"},
      {"online", "divide", kSoftmax, "void store_y("},
      {"online", "product", kStandard, "void values() const"},
      {"standard", "scores", kStandard, "void scores() const"},
      {"standard", "softmax", kStandard, "void softmax(int row) const"},
      {"standard", "product", kStandard, "void values() const"},
  };
  for (const std::string_view algorithm : {"flash_attention", "block_sparse"}) {
    lines.insert(lines.end(), {
                                  {algorithm, "begin", kFlash, "Step::clear(t);"},
                                  {algorithm, "load_kv", kFlash, "load_keys(any, block);"},
                                  {algorithm, "load_q", kFlash, "load_rows(step, t, before);"},
                                  {algorithm, "scores", kFlash, "t.s, shared + rows, k + 4"},
                                  {algorithm, "maximum", kFlash, "step.softmax(t, block);"},
                                  {algorithm, "rescale", kFlash, "step.softmax(t, block);"},
                                  {algorithm, "add", kFlash, "t.o[piece], shared + Layout::kPAt"},
                                  {algorithm, "store", kFlash, "store_rows(step, t, before, "},
                              });
  }
  lines.push_back({"block_sparse", "skip", kFlash, "if (seen == 0 && !first && !last) return;"});
  // Decoding has the loop of FlashAttention-2 over its part of the keys.
  for (const std::string_view algorithm : {"flash_attention_2", "flash_decoding"}) {
    lines.insert(lines.end(), {
                                  {algorithm, "scores", kFlash2, "multiply_qk(w, stage);"},
                                  {algorithm, "maximum", kFlash2,
                                   "template exponentiate<Expressions::kHasScore, C::kMaxLogit>"},
                                  {algorithm, "rescale", kFlash2, "w.o[m][i] *= alpha"},
                                  {algorithm, "add", kFlash2, "multiply_values<Element, TileV>("},
                              });
  }
  lines.insert(lines.end(),
               {
                   {"flash_attention_2", "outer", kFlash2, "Kernel{p, e, QueryTile<C>::at"},
                   {"flash_attention_2", "load_q", kFlash2, "load_q();"},
                   {"flash_attention_2", "begin", kFlash2, "w.o[m][i] = 0;"},
                   {"flash_attention_2", "inner", kFlash2, "list.advance(*this, 0);"},
                   {"flash_attention_2", "load_kv", kFlash2, "load_k(stage ^ 1, k, list.block());"},
                   {"flash_attention_2", "normalise", kFlash2, "const Denominator d = denominator"},
                   {"flash_attention_2", "store", kFlash2, "store_row<Output, C::kHeadDimV>"},
                   {"flash_decoding", "split", kFlash2, "Kernel{p, e, QueryTile<C>::at"},
                   {"flash_decoding", "load", kFlash2, "load_k(stage ^ 1, k, list.block());"},
                   {"flash_decoding", "store", kFlash2, "p.partial_lse[part] = used"},
                   {"flash_decoding", "weigh", kCombine, "top + logf(sum)"},
                   {"flash_decoding", "merge", kCombine, "add(o, to, share, first, splits);"},
                   {"backward", "begin", kBackwardRows, "sum[i] = {0, 0, 0, 0};"},
                   {"backward", "delta", kBackwardRows, "p.d[row] = d - d_lse;"},
                   {"backward", "load_kv", kBackward, "load_keys();"},
                   {"backward", "skip", kBackward, "list.advance();"},
                   {"backward", "load_q", kBackward, "load_queries(to, list.block()"},
                   {"backward", "recompute", kBackward, "weights.probability(s[i][j][r]"},
                   {"backward", "dv", kBackward, "dv, SharedOperand"},
                   {"backward", "ds", kBackward, "weights.template weigh<true, true>"},
                   {"backward", "dq", kBackward, "add_to_memory(to + half"},
                   {"backward", "dk", kBackward, "dk, SharedOperand"},
                   {"backward", "store", kBackward, "store<TileQ>(dk"},
               });
  return lines;
}

std::string_view text_of(std::string_view file) {
  const core::EmbeddedFiles& files = cuda::embedded_headers();
  for (int i = 0; i < files.count; ++i) {
    if (file == files.begin[i].name) return files.begin[i].text;
  }
  return {};
}

}  // namespace

const std::vector<SourceLine>& source_lines() {
  static const std::vector<SourceLine> lines = all_lines();
  return lines;
}

int number_of(const SourceLine& line) {
  const std::string_view text = text_of(line.file);
  const std::size_t at = text.find(line.text);
  if (at == std::string_view::npos) return 0;
  return 1 + static_cast<int>(std::ranges::count(text.substr(0, at), '\n'));
}

Json source_lines_json() {
  Json json = Json::object();
  for (const SourceLine& line : source_lines()) {
    const int number = number_of(line);
    if (number == 0) continue;
    json[std::string(line.algorithm)][std::string(line.step)] = {
        "src/cuda/device/" + std::string(line.file), number};
  }
  return json;
}

}  // namespace attn::explain
