// A layer with a block-sparse weight (FlashAttention paper, appendix D.2), from attn::matmul:
//   Y = relu(X W + b), dZ = dY where Y > 0, dX = dZ W^T, dW = X^T dZ, db = sums of dZ's columns
// where only some blocks of kBlock x kBlock of W exist: the diagonal ones and others at a fixed
// distance, the same number in each row and column. A block column of Y needs the block columns of
// X that its blocks of W meet. Those are put beside each other first, so that one product does the
// rest: per element copied it does 2 kBlock operations. Each density runs beside the dense layer,
// is compared with fp64, and its time with its share of the dense layer's.
//   example_block_sparse_mlp [ROWS OF X] [WIDTH] [ROUNDS]
#include <algorithm>
#include <attn/attn.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <vector>

namespace {

constexpr std::int64_t kBlock = 256;

using Values = std::vector<float>;

// rows x columns of an array whose rows are `stride` apart.
attn::Tensor matrix(float* data, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  attn::Tensor t = attn::tensor(data, {rows, columns});
  t.strides[0] = stride;
  return t;
}
attn::Tensor transposed(attn::Tensor t) {
  std::swap(t.shape[0], t.shape[1]);
  std::swap(t.strides[0], t.strides[1]);
  return t;
}

// width x width, `count` blocks in each row and column of blocks: number s of column j is
// row (j + s * step) % blocks. Stored column by column: [j][s][kBlock][kBlock], so that the blocks
// of a column are one matrix of count * kBlock rows.
struct Weight {
  std::int64_t blocks, count;
  Values data, bias;

  std::int64_t row(std::int64_t j, std::int64_t s) const {
    return (j + s * (blocks / count)) % blocks;
  }
  // The column in which row i is number s.
  std::int64_t column(std::int64_t i, std::int64_t s) const {
    return (i + blocks - s * (blocks / count) % blocks) % blocks;
  }
  float* at(std::int64_t j, std::int64_t s) { return &data[(j * count + s) * kBlock * kBlock]; }
};

// dZ = dY where Y > 0, and the sums of its columns.
void activation_gradient(const Values& y, const Values& dy, Values& dz, Values& db) {
  std::fill(db.begin(), db.end(), 0.0F);
  for (std::size_t row = 0; row < y.size(); row += db.size()) {
    for (std::size_t c = 0; c < db.size(); ++c) {
      dz[row + c] = y[row + c] > 0 ? dy[row + c] : 0;
      db[c] += dz[row + c];
    }
  }
}

class Layer {
 public:
  Layer(Weight weight, std::int64_t rows)
      : w(std::move(weight)),
        dw(w.data.size()),
        db(w.bias.size()),
        rows_(rows),
        width_(w.blocks * kBlock),
        gathered_(rows * w.count * kBlock),
        stacked_(w.count * kBlock * kBlock) {}

  // x, y: [rows][width].
  void forward(Values& x, Values& y) {
    for (std::int64_t j = 0; j < w.blocks; ++j) {
      const attn::Tensor a = columns(x, [&](std::int64_t s) { return w.row(j, s); });
      attn::matmul({.a = a,
                    .b = matrix(w.at(j, 0), w.count * kBlock, kBlock, kBlock),
                    .bias = attn::tensor(&w.bias[j * kBlock], {kBlock})},
                   block(y, j), attn::Activation::relu);
    }
  }

  // dz, dx, and the members dw and db.
  void backward(Values& x, const Values& y, const Values& dy, Values& dz, Values& dx) {
    activation_gradient(y, dy, dz, db);
    for (std::int64_t i = 0; i < w.blocks; ++i) {
      // Rows of W^T that block column i of dX meets: its blocks, transposed, below each other.
      for (std::int64_t s = 0; s < w.count; ++s) {
        const float* from = w.at(w.column(i, s), s);
        float* to = &stacked_[s * kBlock];
        for (std::int64_t r = 0; r < kBlock; ++r) {
          std::copy_n(from + r * kBlock, kBlock, to + r * w.count * kBlock);
        }
      }
      const attn::Tensor a = columns(dz, [&](std::int64_t s) { return w.column(i, s); });
      const attn::Tensor b = matrix(stacked_.data(), kBlock, w.count * kBlock, w.count * kBlock);
      attn::matmul({.a = a, .b = transposed(b)}, block(dx, i));
    }
    for (std::int64_t j = 0; j < w.blocks; ++j) {
      const attn::Tensor a = columns(x, [&](std::int64_t s) { return w.row(j, s); });
      const std::int64_t wide = w.count * kBlock;
      attn::matmul({.a = transposed(a), .b = block(dz, j)},
                   matrix(&dw[j * wide * kBlock], wide, kBlock, kBlock));
    }
  }

  Weight w;
  Values dw, db;

 private:
  attn::Tensor block(Values& x, std::int64_t j) const {
    return matrix(&x[j * kBlock], rows_, kBlock, width_);
  }
  // Block columns of x beside each other; one alone is taken where it lies.
  template <class Number>
  attn::Tensor columns(Values& x, Number number) {
    const std::int64_t wide = w.count * kBlock;
    if (w.count == 1) return block(x, number(0));
    for (std::int64_t i = 0; i < rows_; ++i) {
      for (std::int64_t s = 0; s < w.count; ++s) {
        std::copy_n(&x[i * width_ + number(s) * kBlock], kBlock, &gathered_[i * wide + s * kBlock]);
      }
    }
    return matrix(gathered_.data(), rows_, wide, wide);
  }

  std::int64_t rows_, width_;
  Values gathered_, stacked_;
};

// The same with every block, each product a single call.
struct Dense {
  std::int64_t rows, width;
  Values w, bias, dw, db;

  void forward(Values& x, Values& y) {
    attn::matmul({.a = matrix(x.data(), rows, width, width),
                  .b = matrix(w.data(), width, width, width),
                  .bias = attn::tensor(bias.data(), {width})},
                 matrix(y.data(), rows, width, width), attn::Activation::relu);
  }
  void backward(Values& x, const Values& y, const Values& dy, Values& dz, Values& dx) {
    activation_gradient(y, dy, dz, db);
    const attn::Tensor z = matrix(dz.data(), rows, width, width);
    attn::matmul({.a = z, .b = transposed(matrix(w.data(), width, width, width))},
                 matrix(dx.data(), rows, width, width));
    attn::matmul({.a = transposed(matrix(x.data(), rows, width, width)), .b = z},
                 matrix(dw.data(), width, width, width));
  }
};

// The dense weight of a block-sparse one: zeros elsewhere.
Values spread(Weight& w) {
  const std::int64_t width = w.blocks * kBlock;
  Values all(width * width);
  for (std::int64_t j = 0; j < w.blocks; ++j) {
    for (std::int64_t s = 0; s < w.count; ++s) {
      for (std::int64_t r = 0; r < kBlock; ++r) {
        std::copy_n(w.at(j, s) + r * kBlock, kBlock,
                    &all[(w.row(j, s) * kBlock + r) * width + j * kBlock]);
      }
    }
  }
  return all;
}

// CPU time of all threads: what others on the machine do does not add to it.
double seconds(const auto& call) {
  const std::clock_t begin = std::clock();
  call();
  return double(std::clock() - begin) / CLOCKS_PER_SEC;
}
double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + std::ptrdiff_t(x.size() / 2), x.end());
  return x[x.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t rows = argc > 1 ? std::atoll(argv[1]) : 512;
  const std::int64_t width = argc > 2 ? std::atoll(argv[2]) : 4096;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 3;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto draw = [&](std::int64_t count) {
    Values x(count);
    for (float& value : x) value = normal(random);
    return x;
  };
  Values x = draw(rows * width), dy = draw(rows * width);
  Dense dense{rows, width, draw(width * width), draw(width), Values(width * width), Values(width)};
  bool correct = true;
  std::printf("%8s %10s %24s %24s %16s\n", "density", "", "CPU ms", "share of dense's time",
              "error, of largest");
  for (std::int64_t part = 2; part <= width / kBlock && part <= 16; part *= 2) {
    const std::int64_t blocks = width / kBlock, count = blocks / part;
    Layer layer(Weight{blocks, count, draw(blocks * count * kBlock * kBlock), draw(width)}, rows);
    Values all = spread(layer.w), y(x.size(), NAN), dz(y), dx(y), other(y);
    std::vector<double> times[4];
    for (int round = 0; round < rounds; ++round) {
      times[0].push_back(seconds([&] { dense.forward(x, other); }));
      times[1].push_back(seconds([&] { layer.forward(x, y); }));
      times[2].push_back(seconds([&] { dense.backward(x, y, dy, dz, other); }));
      times[3].push_back(seconds([&] { layer.backward(x, y, dy, dz, dx); }));
    }
    // Some elements of each result in fp64; their size is about the square root of the terms.
    double error = 0;
    for (int sample = 0; sample < 300; ++sample) {
      const auto i = std::int64_t(random() % rows), c = std::int64_t(random() % width);
      double value = layer.w.bias[c], gradient = 0, weight = 0;
      for (std::int64_t k = 0; k < width; ++k) {
        value += double{x[i * width + k]} * all[k * width + c];
        gradient += double{dz[i * width + k]} * all[c * width + k];
      }
      const std::int64_t j = sample % blocks, s = sample % count, r = random() % kBlock,
                         q = random() % kBlock;
      for (std::int64_t row = 0; row < rows; ++row) {
        weight += double{x[row * width + layer.w.row(j, s) * kBlock + r]} *
                  dz[row * width + j * kBlock + q];
      }
      const double terms = std::sqrt(double(count) * kBlock);
      error = std::max({error, std::abs(y[i * width + c] - std::max(value, 0.0)) / terms,
                        std::abs(dx[i * width + c] - gradient) / terms,
                        std::abs(layer.dw[((j * count + s) * kBlock + r) * kBlock + q] - weight) /
                            std::sqrt(double(rows))});
      if (!std::isfinite(y[i * width + c] + dx[i * width + c])) error = INFINITY;
    }
    correct = correct && error < 1e-5;
    const char* const names[] = {"forward", "backward"};
    for (int phase = 0; phase < 2; ++phase) {
      const double whole = median(times[2 * phase]), some = median(times[2 * phase + 1]);
      std::printf("    1/%-2lld %10s %10.1f of %10.1f %24.2f %16.1g\n", (long long)part,
                  names[phase], some * 1e3, whole * 1e3, some / whole * double(part), error);
    }
  }
  return correct ? 0 : 1;
}
