#include "core/expr/program.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "core/expr/bindings.hpp"
#include "core/expr/build.hpp"

namespace attn::expr {
namespace {

Dependence of_leaf(Op op) {
  switch (op) {
    case Op::score:
      return Dependence::full;
    case Op::query:
    case Op::head:
      return Dependence::row;
    case Op::key:
      return Dependence::key;
    default:
      return Dependence::uniform;
  }
}

class Compiler {
 public:
  explicit Compiler(const Expr& e) {
    program_.buffers = buffers(e);
    for (const Expr* part : operands_first(e)) emit(part->node());
    order();
    place();
  }
  Program take() { return std::move(program_); }

 private:
  using Key =
      std::tuple<Op, Type, std::int32_t, std::uint32_t, std::int32_t, std::vector<std::int32_t>>;

  // Makes the instruction that computes the node, after those of its operands.
  void emit(const Node& node) {
    Instruction in;
    in.op = node.op;
    in.type = node.type;
    in.operands = node.args.empty() ? node.type : node.args.back().type();
    in.int_value = node.int_value;
    in.float_value = node.float_value;
    in.dependence = of_leaf(node.op);
    std::vector<std::int32_t> args;
    for (const Expr& arg : node.args) {
      args.push_back(of_node_.at(arg.get()));
      const auto at = static_cast<std::size_t>(args.back());
      in.dependence = join(in.dependence, program_.instructions[at].dependence);
    }
    in.num_args = static_cast<std::int32_t>(args.size());
    std::copy(args.begin(), args.end(), in.args);
    if (node.op == Op::load) in.buffer = index_of(*node.buffer);
    const Key key{in.op,     in.type, in.int_value, std::bit_cast<std::uint32_t>(in.float_value),
                  in.buffer, args};
    auto [known, inserted] =
        of_value_.try_emplace(key, static_cast<std::int32_t>(program_.instructions.size()));
    if (inserted) program_.instructions.push_back(in);
    of_node_.emplace(&node, known->second);
  }

  std::int32_t index_of(const Buffer& buffer) const {
    const auto found =
        std::find_if(program_.buffers.begin(), program_.buffers.end(),
                     [&](const auto& candidate) { return candidate->name() == buffer.name(); });
    return static_cast<std::int32_t>(found - program_.buffers.begin());
  }

  // Moves full instructions to the end; they never feed others, so operands stay before users.
  void order() {
    std::vector<Instruction>& all = program_.instructions;
    std::vector<std::int32_t> position(all.size());
    std::int32_t next = 0;
    for (const bool full : {false, true}) {
      if (full) program_.first_full = next;
      for (std::size_t i = 0; i < all.size(); ++i) {
        if ((all[i].dependence == Dependence::full) == full) position[i] = next++;
      }
    }
    std::vector<Instruction> ordered(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (int a = 0; a < all[i].num_args; ++a) {
        all[i].args[a] = position[static_cast<std::size_t>(all[i].args[a])];
      }
      ordered[static_cast<std::size_t>(position[i])] = all[i];
    }
    all = std::move(ordered);
  }

  std::size_t reserve(std::size_t floats) {
    const std::size_t offset = program_.scratch_floats;
    program_.scratch_floats += floats;
    return offset;
  }

  void place() {
    std::vector<Instruction>& all = program_.instructions;
    std::vector<std::size_t> last_use(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool full = all[i].dependence == Dependence::full;
      all[i].separable = full && all[i].op == Op::load;
      for (int a = 0; a < all[i].num_args; ++a) {
        const auto arg = static_cast<std::size_t>(all[i].args[a]);
        last_use[arg] = i;
        if (full && all[arg].dependence == Dependence::full) all[i].separable = false;
      }
      for (int a = 0; a < all[i].num_args; ++a) {
        Instruction& arg = all[static_cast<std::size_t>(all[i].args[a])];
        if (full && !all[i].separable && arg.dependence == Dependence::key) arg.spread = true;
      }
    }
    if (all.back().dependence == Dependence::key) all.back().spread = true;  // read as the result

    std::vector<std::size_t> free;
    for (std::size_t i = 0; i < all.size(); ++i) {
      Instruction& in = all[i];
      switch (in.dependence) {
        case Dependence::uniform:
          in.offset = reserve(kMaxLanes);
          break;
        case Dependence::row:
          in.offset = reserve(kMaxTileRows);
          break;
        case Dependence::key:
          in.offset = reserve(kMaxTileKeys);
          if (in.spread) in.extra_offset = reserve(kStripKeys * kMaxLanes);
          break;
        case Dependence::full:
          place_full(i, last_use, free);
          if (in.separable) in.extra_offset = reserve(2 * (kMaxTileRows + kMaxTileKeys + 1));
          break;
      }
    }
  }

  // Operands that end here give their memory first: every operation may work in place.
  void place_full(std::size_t i, const std::vector<std::size_t>& last_use,
                  std::vector<std::size_t>& free) {
    std::vector<Instruction>& all = program_.instructions;
    if (all[i].op == Op::score) return;
    for (int a = 0; a < all[i].num_args; ++a) {
      const auto arg = static_cast<std::size_t>(all[i].args[a]);
      const bool counted =
          std::find(all[i].args, all[i].args + a, all[i].args[a]) != all[i].args + a;
      if (!counted && last_use[arg] == i && all[arg].dependence == Dependence::full &&
          all[arg].op != Op::score) {
        free.push_back(all[arg].offset);
      }
    }
    if (free.empty()) {
      all[i].offset = reserve(kStripKeys * kMaxTileRows);
    } else {
      all[i].offset = free.back();
      free.pop_back();
    }
  }

  Program program_;
  std::unordered_map<const Node*, std::int32_t> of_node_;
  std::map<Key, std::int32_t> of_value_;
};

struct Storage {
  Program program;
  std::vector<BufferView> views;
};

}  // namespace

Dependence join(Dependence a, Dependence b) {
  if (a == b || b == Dependence::uniform) return a;
  return a == Dependence::uniform ? b : Dependence::full;
}

Program compile(const Expr& e) {
  e.type();  // refuses an empty expression
  return Compiler(e).take();
}

BoundProgram bind(const Program& program, const Bindings& bindings, BufferView* views) {
  BufferView* next = views;
  for (const auto& buffer : program.buffers) {
    const Tensor& tensor = resolve(*buffer, bindings);
    BufferView& view = *next++;
    view.data = tensor.data;
    view.dtype = tensor.dtype;
    view.rank = tensor.rank;
    std::copy(tensor.shape.begin(), tensor.shape.end(), view.shape);
    std::copy(tensor.strides.begin(), tensor.strides.end(), view.strides);
  }
  BoundProgram bound;
  bound.instructions = program.instructions.data();
  bound.count = static_cast<std::int32_t>(program.instructions.size());
  bound.first_full = program.first_full;
  bound.buffers = views;
  bound.scratch = program.scratch_floats;
  return bound;
}

BoundProgram bind(Program program, const Bindings& bindings) {
  auto storage = std::make_shared<Storage>();
  storage->program = std::move(program);
  storage->views.resize(storage->program.buffers.size());
  BoundProgram bound = expr::bind(storage->program, bindings, storage->views.data());
  bound.storage = std::move(storage);
  return bound;
}

}  // namespace attn::expr
