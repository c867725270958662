// The first block of a network: images with few channels, such as colors, a 3x3 kernel
// with stride 1 and "SAME" padding, pooling and moments. The output y of the convolution
// is much larger than the images. It is computed two rows at a time, which stay in the
// cache, and again for the derivative.
//
// Shapes: x [G, N, H, W, C], k [G, 3, 3, C, O], pooled [G, N, H/2, W/2, O], others [G,
// O]. O is a multiple of kColumns.

#pragma once

#include "kernel_gradient.h"
#include "panels.h"
#include "pool_moments.h"

namespace {

// An image as one plane per channel, with a border of zeros.
template <typename T>
class Planes {
 public:
  explicit Planes(const Images& s)
      // Tiles read up to kRows positions beyond a row.
      : s_(s),
        pitch_(s.width + 2 + kRows),
        plane_((s.height + 2) * pitch_),
        values_(s.channels * plane_) {
    std::fill_n(values_.get(), s.channels * plane_, T(0));
  }
  void Copy(const T* image) {
    for (int64_t h = 0; h < s_.height; ++h)
      for (int64_t c = 0; c < s_.channels; ++c) {
        T* to = values_.get() + c * plane_ + (h + 1) * pitch_ + 1;
        for (int64_t w = 0; w < s_.width; ++w)
          to[w] = image[(h * s_.width + w) * s_.channels + c];
      }
  }
  // The input at the first tap for the output at (h, w), and distances to others.
  const T* at(int64_t h, int64_t w) const { return values_.get() + h * pitch_ + w; }
  int64_t pitch() const { return pitch_; }
  int64_t plane() const { return plane_; }

 private:
  const Images& s_;
  int64_t pitch_, plane_;
  Scratch<T> values_;
};

// The convolution with one kernel.
template <typename T>
class FewChannels {
 public:
  FewChannels(const Images& x, const T* k, int64_t filters)
      : x_(x), filters_(filters), planes_(x), columns_(filters * x.channels * 9) {
    T* to = columns_.get();  // [filters / kColumns][channels][9][kColumns]
    for (int64_t o = 0; o < filters; o += kColumns<T>)
      for (int64_t c = 0; c < x.channels; ++c)
        for (int64_t tap = 0; tap < 9; ++tap, to += kColumns<T>)
          std::copy_n(k + (tap * x.channels + c) * filters + o, kColumns<T>, to);
  }
  void Read(const T* image) { planes_.Copy(image); }
  // Rows h and, if it exists, h + 1 of the output, each [W, O].
  void Rows(int64_t h, T* y) const {
    for (int64_t row = h; row < std::min(h + 2, x_.height); ++row)
      for (int64_t w = 0; w < x_.width; w += kRows)
        for (int64_t o = 0; o < filters_; o += kColumns<T>)
          Tile(planes_.at(row, w), columns_.get() + o * x_.channels * 9,
               y + ((row - h) * x_.width + w) * filters_ + o,
               std::min<int64_t>(kRows, x_.width - w));
  }

 private:
  // `count` positions of a row, for kColumns filters.
  // A single copy, so that outputs that are computed again are the same bit for bit:
  // the cotangent finds maxima by comparison.
  __attribute__((noinline)) void Tile(const T* x, const T* k, T* y, int64_t count) const {
    using V = Vector<T>;
    constexpr int lanes = Simd<T>::kLanes;
    V sum[kRows][2] = {};
    for (int64_t c = 0; c < x_.channels; ++c, x += planes_.plane()) {
      for (int i = 0; i < 3; ++i) {
        for (int j = 0; j < 3; ++j, k += kColumns<T>) {
          const T* at = x + i * planes_.pitch() + j;
          const V a = Load<V>(k), b = Load<V>(k + lanes);
#pragma GCC unroll 14
          for (int m = 0; m < kRows; ++m) {
            sum[m][0] += at[m] * a;
            sum[m][1] += at[m] * b;
          }
        }
      }
    }
#pragma GCC unroll 14
    for (int m = 0; m < kRows; ++m) {
      if (m < count) {
        Store(y + m * filters_, sum[m][0]);
        Store(y + m * filters_ + lanes, sum[m][1]);
      }
    }
  }

  const Images& x_;
  int64_t filters_;
  Planes<T> planes_;
  Scratch<T> columns_;
};

template <ffi::DataType kType>
ffi::Error FirstBlock(ffi::ThreadPool pool, ffi::Buffer<kType> x_in,
                      ffi::Buffer<kType> k_in, ffi::Buffer<kType> sign_in,
                      ffi::ResultBuffer<kType> pooled_out,
                      ffi::ResultBuffer<kType> mean_out,
                      ffi::ResultBuffer<kType> variance_out) {
  using T = ffi::NativeType<kType>;
  const int64_t filters = k_in.dimensions()[4];
  const Images x(x_in.dimensions()), y(x_in.dimensions(), filters);
  Sums sums(y);
  std::vector<T> all_pivots(y.groups * filters);
  ParallelFor(pool, y.groups * y.parts, [&](int64_t part) {
    const int64_t group = part / y.parts;
    FewChannels<T> conv(x, k_in.typed_data() + group * 9 * x.channels * filters, filters);
    Scratch<T> rows(2 * y.row());
    conv.Read(x_in.typed_data() + group * x.number * x.image());
    conv.Rows(0, rows.get());
    const std::vector<T> pivots(rows.get(), rows.get() + filters);
    if (part % y.parts == 0)
      std::copy_n(pivots.data(), filters, all_pivots.data() + group * filters);
    y.ForPart(part, [&](int64_t group, int64_t n) {
      const int64_t image = group * y.number + n;
      conv.Read(x_in.typed_data() + image * x.image());
      T* pooled = pooled_out->typed_data() + image * y.pooled_image();
      for (int64_t h = 0; h < y.height; h += 2) {
        conv.Rows(h, rows.get());
        PoolRows<T>(rows.get(), y.width, filters, h + 1 < y.height, pivots.data(),
                    sign_in.typed_data() + group * filters,
                    pooled + h / 2 * y.pooled_row(), sums.of(part, 0), sums.of(part, 1));
      }
    });
  });
  WriteMoments<T>(sums, y, all_pivots.data(), filters, mean_out->typed_data(),
                  variance_out->typed_data());
  return ffi::Error::Success();
}

// The cotangent of k.
template <ffi::DataType kType>
ffi::Error FirstBlockCotangent(ffi::ThreadPool pool, ffi::Buffer<kType> x_in,
                               ffi::Buffer<kType> k_in, ffi::Buffer<kType> /*sign*/,
                               ffi::Buffer<kType> pooled_in, ffi::Buffer<kType> mean_in,
                               ffi::Buffer<kType> by_pooled, ffi::Buffer<kType> by_mean,
                               ffi::Buffer<kType> by_variance,
                               ffi::ResultBuffer<kType> out) {
  using T = ffi::NativeType<kType>;
  const int64_t filters = k_in.dimensions()[4];
  const Images x(x_in.dimensions()), y(x_in.dimensions(), filters);
  const int64_t kernel = 9 * x.channels * filters;
  auto add = [&](int64_t at, int64_t number, T* result) {
    const int64_t first = at / (x.height * x.width), group = first / x.number;
    FewChannels<T> conv(x, k_in.typed_data() + group * kernel, filters);
    const MomentsCotangent<T> moments(y, group, mean_in.typed_data(),
                                      by_mean.typed_data(), by_variance.typed_data());
    Scratch<T> rows(2 * y.row()), by_rows(2 * y.row());
    KernelSums<T> sums(x, filters);
    for (int64_t n = first; n < first + number; ++n) {
      const T* image = x_in.typed_data() + n * x.image();
      conv.Read(image);
      sums.Read(image, 1);
      for (int64_t h = 0; h < y.height; h += 2) {
        conv.Rows(h, rows.get());
        const int64_t at_row = n * y.pooled_image() + h / 2 * y.pooled_row();
        CotangentRows<T>(rows.get(), y.width, filters, h + 1 < y.height,
                         pooled_in.typed_data() + at_row, by_pooled.typed_data() + at_row,
                         moments, by_rows.get());
        sums.Add(by_rows.get() - h * y.row(), h, std::min(h + 2, y.height));
      }
    }
    sums.Write(result);
  };
  SumOverParts<T>(pool, x, std::min<int64_t>(y.parts, 4), kernel, out->typed_data(), add);
  return ffi::Error::Success();
}

}  // namespace
