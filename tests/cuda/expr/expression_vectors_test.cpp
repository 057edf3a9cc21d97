// Which elements of buffers a score reads several at once, and what is said of them in the text.
#include "cuda/codegen/expression_vectors.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

#include "attn/expr.hpp"
#include "cuda/codegen/expression_buffers.hpp"
#include "cuda/codegen/expression_pack.hpp"
#include "cuda/codegen/expression_text.hpp"

namespace attn {
namespace {

using expr::Buffer;
using expr::Expr;

// [heads, queries, keys], contiguous, at an address that is a multiple of 64.
Tensor elements(DType dtype, std::int64_t keys) {
  alignas(64) static std::array<std::byte, 1> memory;
  return tensor(static_cast<void*>(memory.data()), dtype, {2, 3, keys});
}

Expr scored(const Tensor& t) {
  const expr::Symbols& s = expr::symbols();
  return s.score + Buffer("t", t)({s.head, s.query, s.key});
}

TEST(ElementsAtOnce, AreOfAlignedRows) {
  EXPECT_EQ(cuda::elements_at_once(elements(DType::bf16, 16)), 8);
  EXPECT_EQ(cuda::elements_at_once(elements(DType::f16, 12)), 2);
  EXPECT_EQ(cuda::elements_at_once(elements(DType::f16, 13)), 1);
  EXPECT_EQ(cuda::elements_at_once(elements(DType::f32, 16)), 2);
  EXPECT_EQ(cuda::elements_at_once(elements(DType::f32, 7)), 1);
  EXPECT_EQ(cuda::elements_at_once(elements(DType::u8, 16)), 1);
}

TEST(ElementsAtOnce, DependOnAddressAndStrides) {
  Tensor t = elements(DType::bf16, 16);
  t.data = static_cast<std::byte*>(t.data) + 4;
  EXPECT_EQ(cuda::elements_at_once(t), 2);
  t.data = static_cast<std::byte*>(t.data) + 2;
  EXPECT_EQ(cuda::elements_at_once(t), 1);
  t = elements(DType::bf16, 16);
  t.strides[1] = 20;
  EXPECT_EQ(cuda::elements_at_once(t), 2);
  t.strides[1] = 17;
  EXPECT_EQ(cuda::elements_at_once(t), 1);
  t.shape[1] = 1;  // no other row is read
  EXPECT_EQ(cuda::elements_at_once(t), 8);
  t = elements(DType::bf16, 16);
  t.strides[2] = 2;
  EXPECT_EQ(cuda::elements_at_once(t), 1);
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ExpressionVectors, AreOfLoadsByKey) {
  const expr::Symbols& s = expr::symbols();
  const std::string turned = cuda::print_expressions({}, scored(elements(DType::bf16, 16)));
  EXPECT_TRUE(has(turned, "kVectorWords = 4;")) << turned;
  EXPECT_TRUE(has(turned, "load_vector<ElementBF16, kTransposed>(")) << turned;
  EXPECT_TRUE(has(turned, "transpose_vector(vectors.words + 0);")) << turned;
  const std::string pairs = cuda::print_expressions({}, scored(elements(DType::f32, 16)));
  EXPECT_TRUE(has(pairs, "kVectorWords = 8;")) << pairs;
  EXPECT_TRUE(has(pairs, "load_vector<ElementF32, false>(")) << pairs;
  EXPECT_FALSE(has(pairs, "transpose_vector(vectors")) << pairs;
  // Neither of odd rows, nor of another order or distance of keys, nor of indices that depend on
  // the key.
  const Buffer t("t", elements(DType::bf16, 16));
  for (const Expr& other :
       {scored(elements(DType::bf16, 13)), s.score + t({s.head, s.key, s.query}),
        s.score + t({s.head, s.query, s.key + 1}), s.score + t({s.head, s.query + s.key, s.key}),
        s.score}) {
    const std::string text = cuda::print_expressions({}, other);
    EXPECT_TRUE(has(text, "kVectorWords = 0;")) << to_string(other);
    EXPECT_FALSE(has(text, "load_vector<")) << to_string(other);
  }
}

TEST(ExpressionVectors, HaveAtMostEightWords) {
  const expr::Symbols& s = expr::symbols();
  const Buffer a("a", elements(DType::bf16, 16)), b("b", elements(DType::f16, 16)),
      c("c", elements(DType::bf16, 16));
  const Expr score = s.score + a({s.head, s.query, s.key}) + b({s.head, s.query, s.key}) +
                     c({s.head, s.query, s.key});
  const std::string text = cuda::print_expressions({}, score);
  EXPECT_TRUE(has(text, "kVectorWords = 8;")) << text;
  EXPECT_TRUE(has(text, "load_vector<ElementF16, kTransposed>(buffer_b")) << text;
  EXPECT_FALSE(has(text, "(buffer_c, vectors")) << text;
}

TEST(ExpressionVectors, HaveATextOfTheirOwn) {
  const Expr score = scored(elements(DType::bf16, 16));
  Tensor odd = elements(DType::bf16, 16);
  odd.data = static_cast<std::byte*>(odd.data) + 2;
  const expr::Bindings bindings{{"t", odd}};
  const cuda::ExpressionPack pack = cuda::expression_pack({}, score, 1, 2);
  EXPECT_TRUE(has(cuda::print_expressions({}, score, pack.printed(bindings)), "kVectorWords = 0;"));
  EXPECT_EQ(cuda::print_expressions({}, score, pack.printed({})),
            cuda::print_expressions({}, score));
  EXPECT_FALSE(pack.prints(pack.printed({}), bindings));
  EXPECT_TRUE(pack.prints(pack.printed(bindings), bindings));
}

}  // namespace
}  // namespace attn
