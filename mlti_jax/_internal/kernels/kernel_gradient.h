#pragma once

#include "common.h"

namespace {

// Gradient of a 3x3 kernel: k[i, j, c, o] = sum over n, h, w of
// x[n, h + i, w + j, c] g[n, h, w, o], with x padded by one row and column on each side.
//
// Tiles of 3 columns j, some channels c and two vectors of filters o stay in registers
// while a block of rows runs by; a block is small enough to stay in the L1 cache for all
// tiles.

template <typename T, int kTile>
void AddTile(const T* x, const T* g, T* sums, int64_t first, int64_t last, int64_t height,
             int64_t width, int64_t channels, int64_t padded_filters) {
  using V = Vector<T>;
  constexpr int lanes = Simd<T>::kLanes;
  V sum[3][kTile][2];
  for (int j = 0; j < 3; ++j)
    for (int c = 0; c < kTile; ++c)
      for (int v = 0; v < 2; ++v)
        sum[j][c][v] = Load<V>(sums + ((j * kTile + c) * 2 + v) * lanes);
  const int64_t x_row = (width + 2) * channels, g_row = width * padded_filters;
  for (int64_t row = first; row < last; ++row) {
    // Every image has two rows of padding.
    const T* x_at = x + (row + row / height * 2) * x_row;
    const T* g_at = g + row * g_row;
    for (int64_t w = 0; w < width; ++w, x_at += channels, g_at += padded_filters) {
      const V g0 = Load<V>(g_at), g1 = Load<V>(g_at + lanes);
#pragma GCC unroll 3
      for (int j = 0; j < 3; ++j) {
#pragma GCC unroll 4
        for (int c = 0; c < kTile; ++c) {
          const T value = x_at[j * channels + c];
          sum[j][c][0] += value * g0;
          sum[j][c][1] += value * g1;
        }
      }
    }
  }
  for (int j = 0; j < 3; ++j)
    for (int c = 0; c < kTile; ++c)
      for (int v = 0; v < 2; ++v)
        Store(sums + ((j * kTile + c) * 2 + v) * lanes, sum[j][c][v]);
}

template <typename T>
void AddTileOf(int tile, const T* x, const T* g, T* sums, int64_t first, int64_t last,
               int64_t height, int64_t width, int64_t channels, int64_t padded_filters) {
  auto add = [&](auto size) {
    AddTile<T, decltype(size)::value>(x, g, sums, first, last, height, width, channels,
                                      padded_filters);
  };
  switch (tile) {
    case 1:
      return add(std::integral_constant<int, 1>());
    case 2:
      return add(std::integral_constant<int, 2>());
#if defined(__AVX512F__)
    case 3:
      return add(std::integral_constant<int, 3>());
    case 4:
      return add(std::integral_constant<int, 4>());
#endif
  }
}

constexpr int64_t kBlockBytes = 24 << 10;  // x and g of a block of rows

// Sums for images of one group.
template <typename T>
class KernelSums {
 public:
  KernelSums(const Images& x, int64_t filters)
      : x_(x),
        filters_(filters),
        blocks_((filters + kBlock - 1) / kBlock),
        x_row_((x.width + 2) * x.channels),
        g_row_(x.width * blocks_ * kBlock),
        row_sums_(3 * x.channels * kBlock),
        sums_(blocks_ * 3 * row_sums_, T(0)) {}
  // Images that are copied at a time, of about 256 KiB with their gradients.
  int64_t ImagesAtOnce() const {
    return std::max<int64_t>(1, (256 << 10) / (x_.height * RowBytes()));
  }
  bool pads_filters() const { return blocks_ * kBlock != filters_; }

  // Copies images, with a border of zeros.
  void Read(const T* images, int64_t number) {
    const int64_t image = (x_.height + 2) * x_row_;
    // The border is written once.
    if (int64_t(x_copy_.size()) < number * image) x_copy_.resize(number * image, T(0));
    for (int64_t n = 0; n < number; ++n)
      for (int64_t h = 0; h < x_.height; ++h)
        std::copy_n(images + (n * x_.height + h) * x_.row(), x_.row(),
                    x_copy_.data() + n * image + (h + 1) * x_row_ + x_.channels);
  }
  // Adds products of the images with rows first .. last - 1 of g, [rows, W, filters,
  // padded to a multiple of kBlock].
  void Add(const T* g, int64_t first, int64_t last) {
    for (int64_t b = 0; b < blocks_; ++b) {
      for (int64_t i = 0; i < 3; ++i) {
        T* row_sums = sums_.data() + (b * 3 + i) * row_sums_;
        for (int64_t c = 0; c < x_.channels; c += kChannelTile) {
          int tile = int(std::min<int64_t>(kChannelTile, x_.channels - c));
          AddTileOf<T>(tile, x_copy_.data() + i * x_row_ + c, g + b * kBlock,
                       row_sums + 3 * c * kBlock, first, last, x_.height, x_.width,
                       x_.channels, blocks_ * kBlock);
        }
      }
    }
  }
  // Adds products of images with g [number, H, W, filters].
  void AddImages(const T* x, const T* g, int64_t number) {
    Read(x, number);
    if (pads_filters()) {
      g_copy_.resize(ImagesAtOnce() * x_.height * g_row_, T(0));
      for (int64_t at = 0; at < number * x_.height * x_.width; ++at)
        std::copy_n(g + at * filters_, filters_, g_copy_.data() + at * blocks_ * kBlock);
      g = g_copy_.data();
    }
    const int64_t rows = number * x_.height;
    const int64_t at_once =
        std::max<int64_t>({1, kBlockBytes / RowBytes(), (48 + x_.width - 1) / x_.width});
    for (int64_t first = 0; first < rows; first += at_once)
      Add(g, first, std::min(rows, first + at_once));
  }
  // Writes the sums, [3, 3, C, O].
  void Write(T* out) const {
    for (int64_t b = 0; b < blocks_; ++b) {
      const int64_t count = std::min(kBlock, filters_ - b * kBlock);
      for (int64_t i = 0; i < 3; ++i) {
        for (int64_t c = 0; c < x_.channels; ++c) {
          const int64_t tile_first = c / kChannelTile * kChannelTile;
          const int64_t tile = std::min<int64_t>(kChannelTile, x_.channels - tile_first);
          for (int64_t j = 0; j < 3; ++j) {
            const T* from = sums_.data() + (b * 3 + i) * row_sums_ +
                            (3 * tile_first + j * tile + c - tile_first) * kBlock;
            std::copy_n(from, count,
                        out + ((i * 3 + j) * x_.channels + c) * filters_ + b * kBlock);
          }
        }
      }
    }
  }

 private:
  static constexpr int64_t kBlock = 2 * Simd<T>::kLanes;
  int64_t RowBytes() const { return (x_row_ + g_row_) * int64_t(sizeof(T)); }

  const Images& x_;
  // Layout of the sums: [block of filters][i][tile of channels][j][c][filter].
  int64_t filters_, blocks_, x_row_, g_row_, row_sums_;
  std::vector<T> sums_, x_copy_, g_copy_;
};

template <ffi::DataType kType>
ffi::Error KernelGradient(ffi::ThreadPool pool, ffi::Buffer<kType> x,
                          ffi::Buffer<kType> g, ffi::ResultBuffer<kType> out) {
  using T = ffi::NativeType<kType>;
  const Images s(x.dimensions());
  const int64_t filters = g.dimensions()[4];
  auto add = [&](int64_t at, int64_t number, T* result) {
    KernelSums<T> sums(s, filters);
    for (int64_t first = 0; first < number; first += sums.ImagesAtOnce()) {
      const int64_t here = at + first * s.height * s.width;
      sums.AddImages(x.typed_data() + here * s.channels, g.typed_data() + here * filters,
                     std::min(sums.ImagesAtOnce(), number - first));
    }
    sums.Write(result);
  };
  SumOverParts<T>(pool, s, std::min<int64_t>(s.parts, 4), 9 * s.channels * filters,
                  out->typed_data(), add);
  return ffi::Error::Success();
}

}  // namespace
