// Expressions as linear programs, for backends that evaluate a whole tile of scores at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "attn/expr.hpp"

namespace attn::expr {

// Largest tile: rows (a query and head each) by keys.
inline constexpr int kMaxTileRows = 32;
inline constexpr int kMaxTileKeys = 64;
// Keys that full instructions take at a time, so that their temporaries stay in L1: 2 KB each.
inline constexpr int kStripKeys = 16;
inline constexpr int kMaxLanes = 16;  // of a vector of 4-byte elements

// What the value of an instruction varies with inside a tile.
enum class Dependence : std::uint8_t {
  uniform,  // nothing: constants, batch, lengths
  row,      // query, head
  key,
  full,  // a row and a key, or the score
};

// What a value varies with that is made of two.
Dependence join(Dependence a, Dependence b);

// One operation. Values are 4 bytes: float32, int32, or a boolean as 0 or -1.
struct Instruction {
  Op op = Op::constant;
  Type type = Type::int32;      // of the result
  Type operands = Type::int32;  // of the last operand: what tells float from integer arithmetic
  Dependence dependence = Dependence::uniform;
  bool spread = false;  // key instruction that a full one reads: one vector a key is kept as well
  bool separable = false;  // full load none of whose indices is full
  std::int32_t num_args = 0;
  std::int32_t args[kMaxRank] = {};  // instructions before this one
  std::int32_t int_value = 0;        // of a constant; boolean: 0 or 1
  float float_value = 0;
  std::int32_t buffer = 0;  // of a load: index into Program::buffers
  // Where in the scratch memory the result lies, in floats: [kMaxLanes], [kMaxTileRows],
  // [kMaxTileKeys] or [kStripKeys][rows] by dependence. Full results share memory when their lives
  // do not overlap. query, head and score lie with the caller.
  std::size_t offset = 0;
  // spread: of [kStripKeys][kMaxLanes] copies; separable: of int64 [kMaxTileRows + kMaxTileKeys +
  // 1], the parts of the element offset that rows and keys add, and whether keys are contiguous.
  std::size_t extra_offset = 0;
};

// Instructions in evaluation order, each distinct value once; full ones come last. The last is the
// result.
struct Program {
  std::vector<Instruction> instructions;
  std::vector<std::shared_ptr<const Buffer>> buffers;
  std::int32_t first_full = 0;
  std::size_t scratch_floats = 0;
};

// e must not be empty. Throws Error(invalid_argument) as buffers() does.
Program compile(const Expr& e);

// A tensor that a load reads.
struct BufferView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int32_t rank = 0;
  std::int64_t shape[kMaxRank] = {};
  std::int64_t strides[kMaxRank] = {};  // elements
};

// A program whose loads are resolved. Plain pointers, because the kernels that read it are built
// with flags under which they must not instantiate templates of the standard library. Copies share
// one storage; thread-safe to use.
struct BoundProgram {
  const Instruction* instructions = nullptr;
  std::int32_t count = 0;
  std::int32_t first_full = 0;
  const BufferView* buffers = nullptr;
  std::size_t scratch = 0;
  std::shared_ptr<const void> storage;

  // Floats that TileContext::scratch must hold.
  std::size_t scratch_floats() const { return scratch; }
};

// Throws Error(invalid_argument) when a buffer has no usable tensor on the CPU. The tensors' memory
// must outlive the result, but for what a Buffer owns.
BoundProgram bind(Program program, const Bindings& bindings);

// Binds without storage of its own: `program` and views[0, program.buffers.size()), which are
// written, must outlive the result.
BoundProgram bind(const Program& program, const Bindings& bindings, BufferView* views);

// One tile: scores [keys][rows], row r being query[r] of head[r].
struct TileContext {
  const std::int32_t* query = nullptr;  // [rows]
  const std::int32_t* head = nullptr;   // [rows]
  int rows = 0;                         // a multiple of the lanes, at most kMaxTileRows
  int key0 = 0;
  int keys = 0;  // at most kMaxTileKeys
  std::int32_t batch = 0, seqlen_q = 0, seqlen_k = 0;
  float* scratch = nullptr;  // 64-byte aligned; one for each thread
};

}  // namespace attn::expr
