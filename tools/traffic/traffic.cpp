#include "traffic/traffic.hpp"

#include "attn/tensor.hpp"

namespace attn::traffic {

std::string_view name(Operand operand) noexcept {
  switch (operand) {
    case Operand::q:
      return "q";
    case Operand::k:
      return "k";
    case Operand::v:
      return "v";
    case Operand::o:
      return "o";
    case Operand::lse:
      return "lse";
    case Operand::s:
      return "s";
    case Operand::p:
      return "p";
    case Operand::d_o:
      return "do";
    case Operand::dq:
      return "dq";
    case Operand::dk:
      return "dk";
    case Operand::dv:
      return "dv";
    case Operand::dp:
      return "dp";
    case Operand::ds:
      return "ds";
    case Operand::d:
      return "d";
    case Operand::packed:
      return "packed";
    case Operand::partial:
      return "partial";
    case Operand::scratch:
      return "scratch";
  }
  return {};
}

std::int64_t element_bytes(const Problem& problem, Operand operand) {
  const bool f32 = operand == Operand::lse || operand == Operand::d ||
                   operand == Operand::partial || operand == Operand::scratch;
  return static_cast<std::int64_t>(size_of(f32 ? DType::f32 : DType{problem.dtype}));
}

double Traffic::read() const {
  double sum = 0;
  for (const Moved& moved : moved_) sum += moved.read;
  return sum;
}

double Traffic::written() const {
  double sum = 0;
  for (const Moved& moved : moved_) sum += moved.written;
  return sum;
}

Traffic& Traffic::operator+=(const Traffic& other) {
  for (std::size_t i = 0; i < kOperands; ++i) {
    moved_[i].read += other.moved_[i].read;
    moved_[i].written += other.moved_[i].written;
  }
  return *this;
}

Traffic& Traffic::operator*=(double factor) {
  for (Moved& moved : moved_) {
    moved.read *= factor;
    moved.written *= factor;
  }
  return *this;
}

}  // namespace attn::traffic
