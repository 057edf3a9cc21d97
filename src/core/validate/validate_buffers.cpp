// Shapes of the buffers that shorthands of mask.hpp read.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "core/expr/build.hpp"
#include "core/validate/validate.hpp"
#include "core/validate/validate_parts.hpp"

namespace attn::core {
namespace {

using attn::expr::Buffer;
using attn::expr::Expr;
using attn::expr::Node;
using attn::expr::Op;

constexpr std::int64_t kUnknown = -1;

struct Shorthand {
  std::string_view buffer;  // its name, which a number may follow
  std::string_view name;
  // Indices are divided by the sides of a block or the bits of a word. The last two dimensions then
  // cover all scores, so one index for all of them is a mistake.
  bool blocks;
};
constexpr std::array kShorthands = {
    Shorthand{"slopes", "alibi", false},    Shorthand{"bias", "bias", false},
    Shorthand{"ids_q", "documents", false}, Shorthand{"ids_k", "documents", false},
    Shorthand{"ids", "documents", false},   Shorthand{"block_mask", "a block mask", true},
    Shorthand{"tree", "a tree mask", true}};

const Shorthand* shorthand_of(std::string_view buffer) {
  const auto* found = std::ranges::find_if(kShorthands, [&](const Shorthand& shorthand) {
    return buffer.starts_with(shorthand.buffer) &&
           std::all_of(buffer.begin() + static_cast<std::ptrdiff_t>(shorthand.buffer.size()),
                       buffer.end(), [](char c) { return c >= '0' && c <= '9'; });
  });
  return found == kShorthands.end() ? nullptr : found;
}

// Whether e is key - (seqlen_k - seqlen_q): the key's place among the last seqlen_q ones.
bool is_draft(const Expr& e) {
  const auto is = [](const Expr& part, Op op) { return part.node().op == op; };
  if (!is(e, Op::sub)) return false;
  const std::vector<Expr>& difference = e.node().args;
  if (!is(difference[0], Op::key) || !is(difference[1], Op::sub)) return false;
  const std::vector<Expr>& before = difference[1].node().args;
  return is(before[0], Op::seqlen_k) && is(before[1], Op::seqlen_q);
}

// How many values 0, 1, ... an index takes; unknown for what no shorthand writes.
std::int64_t extent_of(const Problem& p, const Expr& index, bool blocks) {
  if (attn::expr::is_position(index)) return p.seqlen_prefix + p.seqlen_k;
  const Node& node = index.node();
  switch (node.op) {
    case Op::batch:
      return p.batch;
    case Op::head:
      return p.heads_q;
    case Op::query:
      return p.seqlen_q;
    case Op::key:
      return p.seqlen_prefix + p.seqlen_k;
    case Op::div: {
      const Node& divisor = node.args[1].node();
      if (!blocks || divisor.op != Op::constant || divisor.int_value < 1) return kUnknown;
      const std::int64_t extent =
          is_draft(node.args[0]) ? p.seqlen_q : extent_of(p, node.args[0], false);
      return extent < 0 ? kUnknown : (extent + divisor.int_value - 1) / divisor.int_value;
    }
    default:
      return kUnknown;
  }
}

using Extents = std::array<std::int64_t, kMaxRank>;

// Raises `extents` to what the loads of the buffer in e ask for; false where one has an index that
// its shorthand does not write.
bool measure(const Problem& p, const Expr& e, const Buffer& buffer, bool blocks, Extents& extents) {
  const Node& node = e.node();
  const bool reads = node.op == Op::load && node.buffer->name() == buffer.name();
  for (std::size_t d = 0; d < node.args.size(); ++d) {
    if (!measure(p, node.args[d], buffer, blocks, extents)) return false;
    if (!reads) continue;
    const std::int64_t extent = extent_of(p, node.args[d], blocks);
    if (extent == kUnknown) return false;
    extents[d] = std::max(extents[d], extent);
  }
  return true;
}

}  // namespace

void check_shorthand_shape(const ArgumentCheck& check, const Problem& problem, const Buffer& buffer,
                           const Tensor& t, bool declaration) {
  const Shorthand* shorthand = shorthand_of(buffer.name());
  if (shorthand == nullptr) return;
  Extents extents;
  extents.fill(kUnknown);
  for (const Expr* e : {&problem.mask, &problem.score}) {
    if (!e->empty() && !measure(problem, *e, buffer, shorthand->blocks, extents)) return;
  }
  for (std::size_t d = 0; d < static_cast<std::size_t>(t.rank); ++d) {
    const std::int64_t size = t.shape[d];
    const bool one_serves =
        size == 1 && !(shorthand->blocks && d + 2 >= static_cast<std::size_t>(t.rank));
    if (size == extents[d] || one_serves || (declaration && size == 0)) continue;
    check.refuse(
        fmt::format("buffer '{}' of {} is {}; accepted is [{}]{}", buffer.name(), shorthand->name,
                    to_string(t), fmt::join(extents.begin(), extents.begin() + t.rank, ", "),
                    shorthand->blocks ? ", where a size of 1 serves every batch entry and head"
                                      : ", where a size of 1 serves every index"));
  }
}

void validate_declarations(const Problem& problem, bool open) {
  const ArgumentCheck check(&problem);
  CallMemory memory;
  std::pmr::vector<const Buffer*> read(&memory.resource());
  for (const Expr* e : {&problem.mask, &problem.score}) {
    read.clear();
    if (!e->empty()) attn::expr::collect_buffers(*e, read);
    for (const Buffer* buffer : read) {
      check_shorthand_shape(check, problem, *buffer, buffer->tensor(),
                            open && buffer->tensor().data == nullptr);
    }
  }
}

}  // namespace attn::core
