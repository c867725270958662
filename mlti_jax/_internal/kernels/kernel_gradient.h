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
    case 1: return add(std::integral_constant<int, 1>());
    case 2: return add(std::integral_constant<int, 2>());
#if defined(__AVX512F__)
    case 3: return add(std::integral_constant<int, 3>());
    case 4: return add(std::integral_constant<int, 4>());
#endif
  }
}

constexpr int64_t kBlockBytes = 24 << 10;  // x and g of a block of rows

// One part of the images of one group; `out` is [3, 3, C, O].
template <typename T>
void KernelGradientPart(const T* x_in, const T* g_in, T* out, int64_t number,
                        int64_t height, int64_t width, int64_t channels,
                        int64_t filters) {
  constexpr int64_t block = 2 * Simd<T>::kLanes;
  const int64_t blocks = (filters + block - 1) / block;
  const int64_t padded_filters = blocks * block;
  // Layout of the sums: [block of filters][i][tile of channels][j][c][filter].
  const int64_t sums_per_row = 3 * channels * block;
  std::vector<T> sums(blocks * 3 * sums_per_row, T(0));

  const int64_t x_row = (width + 2) * channels, x_image = (height + 2) * x_row;
  const int64_t g_row = width * padded_filters;
  // Rows that are copied at a time, whole images of about 256 KiB.
  const int64_t image_bytes = (x_image + height * g_row) * int64_t(sizeof(T));
  const int64_t chunk =
      std::clamp<int64_t>((256 << 10) / image_bytes, 1, std::max<int64_t>(number, 1));
  // Zeros of the padding are written once.
  std::vector<T> x_copy(chunk * x_image, T(0));
  const bool copy_g = padded_filters != filters;
  std::vector<T> g_copy(copy_g ? chunk * height * g_row : 0, T(0));

  const int64_t row_bytes = (x_row + g_row) * int64_t(sizeof(T));
  const int64_t rows_a_block =
      std::max<int64_t>({1, kBlockBytes / row_bytes, (48 + width - 1) / width});

  for (int64_t start = 0; start < number; start += chunk) {
    const int64_t images = std::min(chunk, number - start);
    for (int64_t n = 0; n < images; ++n) {
      for (int64_t h = 0; h < height; ++h) {
        std::memcpy(x_copy.data() + n * x_image + (h + 1) * x_row + channels,
                    x_in + ((start + n) * height + h) * width * channels,
                    width * channels * sizeof(T));
      }
    }
    const T* g = g_in + start * height * width * filters;
    if (copy_g) {
      for (int64_t at = 0; at < images * height * width; ++at) {
        std::memcpy(g_copy.data() + at * padded_filters, g + at * filters,
                    filters * sizeof(T));
      }
      g = g_copy.data();
    }
    const int64_t rows = images * height;
    for (int64_t first = 0; first < rows; first += rows_a_block) {
      const int64_t last = std::min(rows, first + rows_a_block);
      for (int64_t b = 0; b < blocks; ++b) {
        for (int64_t i = 0; i < 3; ++i) {
          T* row_sums = sums.data() + (b * 3 + i) * sums_per_row;
          for (int64_t c = 0; c < channels; c += kChannelTile) {
            int tile = int(std::min<int64_t>(kChannelTile, channels - c));
            AddTileOf<T>(tile, x_copy.data() + i * x_row + c, g + b * block,
                         row_sums + 3 * c * block, first, last, height, width, channels,
                         padded_filters);
          }
        }
      }
    }
  }
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t width_of = std::min(block, filters - b * block);
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t c = 0; c < channels; ++c) {
        const int64_t tile_first = c / kChannelTile * kChannelTile;
        const int64_t tile = std::min<int64_t>(kChannelTile, channels - tile_first);
        for (int64_t j = 0; j < 3; ++j) {
          const T* from = sums.data() + (b * 3 + i) * sums_per_row +
                          (3 * tile_first + j * tile + c - tile_first) * block;
          std::copy_n(from, width_of,
                      out + ((i * 3 + j) * channels + c) * filters + b * block);
        }
      }
    }
  }
}

template <ffi::DataType kType>
ffi::Error KernelGradient(ffi::ThreadPool pool, ffi::Buffer<kType> x,
                          ffi::Buffer<kType> g, ffi::ResultBuffer<kType> out) {
  using T = ffi::NativeType<kType>;
  const Images s(x.dimensions());
  const int64_t filters = g.dimensions()[4];
  SumOverParts<T>(pool, s, std::min<int64_t>(s.parts, 4), 9 * s.channels * filters,
                  out->typed_data(), [&](int64_t at, int64_t number, T* sums) {
                    KernelGradientPart<T>(x.typed_data() + at * s.channels,
                                          g.typed_data() + at * filters, sums, number,
                                          s.height, s.width, s.channels, filters);
                  });
  return ffi::Error::Success();
}

}  // namespace
