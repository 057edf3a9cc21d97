#include "io/npy.hpp"

#include <fmt/format.h>

#include "io_test_util.hpp"

namespace attn::io {
namespace {

class Npy : public IoTest {
 protected:
  std::filesystem::path file(int version, const std::string& header, std::size_t data_bytes) const {
    std::string bytes("\x93NUMPY");
    bytes += static_cast<char>(version);
    bytes += '\0';
    const auto length = static_cast<std::uint32_t>(header.size());
    bytes.append(reinterpret_cast<const char*>(&length), version == 1 ? 2 : 4);
    return store("f.npy", bytes + header + std::string(data_bytes, '\0'));
  }
  void expect_refused(const std::string& header, std::size_t data_bytes,
                      std::initializer_list<std::string_view> parts) const {
    SCOPED_TRACE(header);
    const std::filesystem::path path = file(1, header, data_bytes);
    expect_error(ErrorCode::io, parts, [&] { read_npy(path); });
    expect_error(ErrorCode::io, {path.native()}, [&] { read_npy(path); });
  }
};

std::string header(std::string_view descr, std::string_view shape) {
  return fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}\n", descr, shape);
}

TEST_F(Npy, WhatIsWrittenReadsBack) {
  std::mt19937_64 random(2);
  for (const DType dtype :
       {DType::f64, DType::f32, DType::f16, DType::i64, DType::i32, DType::u8}) {
    for (const Array& array :
         {random_array(dtype, {2, 3, 1, 5}, random), random_array(dtype, {7}, random),
          random_array(dtype, {3, 0, 2}, random)}) {
      write_npy(path("a.npy"), array.tensor());
      EXPECT_TRUE(same_bits(read_npy(path("a.npy")), array)) << to_string(array.tensor());
      EXPECT_EQ((load(path("a.npy")).size() - array.bytes()) % 64, 0U);
    }
  }
}

// The bytes of numpy.save(file, numpy.array([[1, 2], [3, 4]], dtype='<i4')), NumPy 1.24.
TEST_F(Npy, FileOfNumpy) {
  std::string bytes("\x93NUMPY\x01\x00\x76\x00", 10);
  bytes += "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 2), }";
  bytes.resize(127, ' ');
  bytes += '\n';
  bytes += std::string("\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0", 16);
  const Array array = read_npy(store("numpy.npy", bytes));
  ASSERT_EQ(to_string(array.tensor().dtype == DType::i32 ? array.tensor() : Tensor{}),
            to_string(array.tensor()));
  ASSERT_EQ(array.tensor().rank, 2);
  ASSERT_EQ(array.bytes(), 16U);
  const auto* values = static_cast<const std::int32_t*>(array.tensor().data);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(values[i], i + 1);
}

TEST_F(Npy, EveryVersion) {
  for (const int version : {1, 2, 3}) {
    EXPECT_EQ(read_npy(file(version, header("<f4", "(3,)"), 12)).bytes(), 12U) << version;
  }
  EXPECT_EQ(read_npy(file(1, R"({"shape":(2,3),"fortran_order":False,"descr":"<f2"})", 12)).bytes(),
            12U);
  const auto path = file(4, header("<f4", "(3,)"), 12);
  expect_error(ErrorCode::io, {"version 4.0", "3.0"}, [&] { read_npy(path); });
}

TEST_F(Npy, TruncatedFiles) {
  const std::string whole = load(file(1, header("<f4", "(2, 2)"), 16));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto path = store("cut.npy", whole.substr(0, size));
    expect_error(ErrorCode::io, {"cut.npy"}, [&] { read_npy(path); });
  }
  const auto longer = store("longer.npy", whole + "x");
  expect_error(ErrorCode::io, {"longer.npy", "17 bytes"}, [&] { read_npy(longer); });
}

TEST_F(Npy, RefusedHeaders) {
  expect_refused(header(">f4", "(1,)"), 4, {">f4", "<f4"});
  expect_refused(header("<c8", "(1,)"), 8, {"<c8", "|u1"});
  expect_refused(header("<f4", "()"), 4, {"rank is 0"});
  expect_refused(header("<f4", "(1, 1, 1, 1, 1)"), 4, {"rank is 5"});
  expect_refused(header("<f4", "(2,)"), 4, {"(2,)", "4 bytes"});
  expect_refused(header("<f4", "(-1,)"), 4, {"dict"});
  expect_refused(header("<f4", "(4294967296, 4294967296)"), 0, {"4294967296", "0 bytes"});
  expect_refused(header("<f4", "(0, 9223372036854775807)"), 0, {"0 bytes"});
  expect_refused(header("<f4", "(99999999999999999999,)"), 0, {"dict"});
  expect_refused(header("<f4", "(1"), 4, {"dict"});
  expect_refused("{'descr': '<f4', 'fortran_order': True, 'shape': (1, 1)}", 4, {"Fortran"});
  expect_refused("{'descr': '<f4', 'shape': (1,)}", 4, {"dict"});
  expect_refused("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", 4,
                 {"dict"});
  expect_refused("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", 4, {"dict"});
  expect_refused("{'descr': '<f4\x1b', 'fortran_order': False, 'shape': (1,)}", 4, {"<f4\\x1b"});
  expect_refused(header("<f4", "(1,)") + "x", 4, {"dict"});
  expect_refused("", 4, {"dict"});
  expect_refused(std::string(60'000, '('), 0, {"60000", "at most 10000"});
}

TEST_F(Npy, Bf16IsNotWritten) {
  const bfloat16 value(1.0F);
  expect_error(ErrorCode::invalid_argument, {"b.npy", "bf16", "safetensors"},
               [&] { write_npy(path("b.npy"), tensor(&value, {1})); });
  EXPECT_FALSE(std::filesystem::exists(path("b.npy")));
}

TEST(Convert, BetweenFloatingTypes) {
  const double values[] = {1.0, -2.5, 1e-3, 65504, 1.0 / 3};
  const Array f32 = convert(tensor(values, {5}), DType::f32);
  const Array bf16 = convert(f32.tensor(), DType::bf16);
  const Array f16 = convert(f32.tensor(), DType::f16);
  const Array back = convert(bf16.tensor(), DType::f64);
  for (std::size_t i = 0; i < 5; ++i) {
    const auto value = static_cast<float>(values[i]);
    EXPECT_EQ(static_cast<const float*>(f32.tensor().data)[i], value);
    EXPECT_EQ(static_cast<const bfloat16*>(bf16.tensor().data)[i].bits, bfloat16(value).bits);
    EXPECT_EQ(static_cast<const float16*>(f16.tensor().data)[i].bits, float16(value).bits);
    EXPECT_EQ(static_cast<const double*>(back.tensor().data)[i],
              static_cast<double>(static_cast<float>(bfloat16(value))));
  }
  const std::int32_t integer = 1;
  expect_error(ErrorCode::invalid_argument, {"i32"},
               [&] { convert(tensor(&integer, {1}), DType::f32); });
}

}  // namespace
}  // namespace attn::io
