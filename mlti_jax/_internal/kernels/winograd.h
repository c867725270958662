// Convolutions with 3x3 kernels, stride 1 and "SAME" padding by Winograd's F(2x2, 3x3)
// (Lavin and Gray, 2016), with 16 products instead of 36 per four outputs:
//
//   y = A^T [(G k G^T) * (B^T x B)] A   for tiles x of 4x4 inputs and y of 2x2 outputs,
//
// and its transpose, the gradient of the kernel: G^T [(A g A^T) * (B^T x B)] G. The sums
// over channels (or tiles) are matrix products, one for each of the 16 positions.

#pragma once

#include "panels.h"

namespace {

constexpr int kPositions = 16;

// Distance of the 16 positions of a tile in memory. A multiple of a cache line that is
// odd, so that they lie in different sets of the cache.
template <typename T>
constexpr int64_t Spread(int64_t size) {
  constexpr int64_t line = 64 / sizeof(T);
  return (Ceil(size, line) | 1) * line;
}

// B^T d B, in place.
template <typename V>
inline void TransformInput(V d[4][4]) {
  for (int j = 0; j < 4; ++j) {
    const V a = d[0][j] - d[2][j], b = d[1][j] + d[2][j];
    const V c = d[2][j] - d[1][j], e = d[1][j] - d[3][j];
    d[0][j] = a, d[1][j] = b, d[2][j] = c, d[3][j] = e;
  }
  for (int i = 0; i < 4; ++i) {
    const V a = d[i][0] - d[i][2], b = d[i][1] + d[i][2];
    const V c = d[i][2] - d[i][1], e = d[i][1] - d[i][3];
    d[i][0] = a, d[i][1] = b, d[i][2] = c, d[i][3] = e;
  }
}

// A^T m A.
template <typename V>
inline void TransformOutput(const V m[4][4], V y[2][2]) {
  V t[2][4];
  for (int j = 0; j < 4; ++j) {
    t[0][j] = m[0][j] + m[1][j] + m[2][j];
    t[1][j] = m[1][j] - m[2][j] - m[3][j];
  }
  for (int i = 0; i < 2; ++i) {
    y[i][0] = t[i][0] + t[i][1] + t[i][2];
    y[i][1] = t[i][1] - t[i][2] - t[i][3];
  }
}

// A g A^T.
template <typename V>
inline void TransformGradient(const V g[2][2], V m[4][4]) {
  V t[4][2];
  for (int j = 0; j < 2; ++j) {
    t[0][j] = g[0][j];
    t[1][j] = g[0][j] + g[1][j];
    t[2][j] = g[0][j] - g[1][j];
    t[3][j] = -g[1][j];
  }
  for (int i = 0; i < 4; ++i) {
    m[i][0] = t[i][0];
    m[i][1] = t[i][0] + t[i][1];
    m[i][2] = t[i][0] - t[i][1];
    m[i][3] = -t[i][1];
  }
}

// G k G^T.
template <typename T, typename V>
inline void TransformKernel(const V k[3][3], V u[4][4]) {
  const T half = T(0.5);
  V t[4][3];
  for (int j = 0; j < 3; ++j) {
    const V even = half * (k[0][j] + k[2][j]), odd = half * k[1][j];
    t[0][j] = k[0][j];
    t[1][j] = even + odd;
    t[2][j] = even - odd;
    t[3][j] = k[2][j];
  }
  for (int i = 0; i < 4; ++i) {
    const V even = half * (t[i][0] + t[i][2]), odd = half * t[i][1];
    u[i][0] = t[i][0];
    u[i][1] = even + odd;
    u[i][2] = even - odd;
    u[i][3] = t[i][2];
  }
}

// G^T s G.
template <typename T, typename V>
inline void TransformSums(const V s[4][4], V k[3][3]) {
  const T half = T(0.5);
  V t[3][4];
  for (int j = 0; j < 4; ++j) {
    const V even = half * (s[1][j] + s[2][j]), odd = half * (s[1][j] - s[2][j]);
    t[0][j] = s[0][j] + even;
    t[1][j] = odd;
    t[2][j] = even + s[3][j];
  }
  for (int i = 0; i < 3; ++i) {
    const V even = half * (t[i][1] + t[i][2]), odd = half * (t[i][1] - t[i][2]);
    k[i][0] = t[i][0] + even;
    k[i][1] = odd;
    k[i][2] = even + t[i][3];
  }
}

// The tiles of N images, numbered from 0, and where a tile lies.
struct Tiles {
  int64_t height, width, rows, columns;

  explicit Tiles(const Images& s)
      : height(s.height),
        width(s.width),
        rows(Ceil(s.height, 2)),
        columns(Ceil(s.width, 2)) {}
  int64_t per_image() const { return rows * columns; }

  struct Place {
    int64_t image, h, w;  // of the first output
  };
  Place of(int64_t tile) const {
    const int64_t inside = tile % per_image();
    return {tile / per_image(), inside / columns * 2, inside % columns * 2};
  }
};

// B^T x B of one tile and a vector of channels; `count` of them exist.
template <typename T>
inline void LoadInput(const T* image, const Tiles& tiles, int64_t h, int64_t w,
                      int64_t channels, int64_t count, Vector<T> d[4][4]) {
  const T* at = image + ((h - 1) * tiles.width + w - 1) * channels;
  const bool inside = h > 0 && w > 0 && h + 2 < tiles.height && w + 2 < tiles.width;
  if (inside && count >= Simd<T>::kLanes) {
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j)
        d[i][j] = Load<Vector<T>>(at + (i * tiles.width + j) * channels);
  } else {
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) {
        const bool valid =
            h + i > 0 && h + i <= tiles.height && w + j > 0 && w + j <= tiles.width;
        d[i][j] = valid ? LoadFirst<T>(at + (i * tiles.width + j) * channels, count)
                        : Vector<T>{};
      }
  }
  TransformInput(d);
}

// The mirrored kernel, [i, j, o, c] = k[2 - i, 2 - j, c, o].
template <typename T>
void Mirror(const T* k, T* out, int64_t channels, int64_t filters) {
  constexpr int64_t block = 16;
  for (int tap = 0; tap < 9; ++tap) {
    const T* from = k + (8 - tap) * channels * filters;
    T* to = out + tap * channels * filters;
    for (int64_t c0 = 0; c0 < channels; c0 += block)
      for (int64_t o0 = 0; o0 < filters; o0 += block)
        for (int64_t o = o0; o < std::min(filters, o0 + block); ++o)
          for (int64_t c = c0; c < std::min(channels, c0 + block); ++c)
            to[o * channels + c] = from[c * filters + o];
  }
}

// Transformed kernel, [16][blocks of filters][channels, padded][kColumns].
template <typename T>
void TransformKernels(const T* k, T* out, int64_t channels, int64_t filters) {
  constexpr int lanes = Simd<T>::kLanes;
  const int64_t padded = Ceil(channels, lanes) * lanes;
  const int64_t blocks = Ceil(filters, kColumns<T>);
  const int64_t position = Spread<T>(blocks * padded * kColumns<T>);
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t c = 0; c < padded; ++c) {
      for (int v = 0; v < 2; ++v) {
        const int64_t o = block * kColumns<T> + v * lanes;
        Vector<T> taps[3][3], u[4][4];
        for (int i = 0; i < 3; ++i)
          for (int j = 0; j < 3; ++j)
            taps[i][j] =
                c < channels
                    ? LoadFirst<T>(k + ((i * 3 + j) * channels + c) * filters + o,
                                   filters - o)
                    : Vector<T>{};
        TransformKernel<T>(taps, u);
        T* to = out + (block * padded + c) * kColumns<T> + v * lanes;
        for (int p = 0; p < kPositions; ++p) Store(to + p * position, u[p / 4][p % 4]);
      }
    }
  }
}

// Tiles that are processed together: few enough to stay in the cache with their products,
// and enough to use each transformed kernel that is read.
template <typename T>
int64_t TilesAtOnce(int64_t channels, int64_t filters) {
  const int64_t per_tile = kPositions * (channels + filters) * int64_t(sizeof(T));
  const int64_t kernel = kPositions * channels * filters * int64_t(sizeof(T));
  const int64_t fewest = kernel > (1 << 20) ? 168 : 56;
  return std::clamp<int64_t>((512 << 10) / per_tile, fewest, 252);
}

// Number of parts that images are divided into; each has enough tiles.
inline int64_t WinogradParts(const Images& s, int64_t most) {
  const int64_t tiles = s.number * Tiles(s).per_image();
  return std::clamp<int64_t>(tiles / 128, 1, std::min(s.number, most));
}

template <typename T>
void ConvolvePart(const T* x, const T* u, T* y, const Images& s, int64_t number,
                  int64_t filters) {
  using V = Vector<T>;
  constexpr int lanes = Simd<T>::kLanes;
  const Tiles tiles(s);
  const int64_t channel_blocks = Ceil(s.channels, lanes);
  const int64_t filter_blocks = Ceil(filters, kColumns<T>);
  const int64_t total = number * tiles.per_image();
  const int64_t groups =
      Ceil(std::min(total, TilesAtOnce<T>(s.channels, filters)), kRows);
  const int64_t x_position = Spread<T>(groups * channel_blocks * kRows * lanes);
  const int64_t m_position = Spread<T>(groups * filter_blocks * kRows * kColumns<T>);
  const int64_t u_position =
      Spread<T>(filter_blocks * channel_blocks * lanes * kColumns<T>);
  const int64_t u_block = channel_blocks * lanes * kColumns<T>;
  Scratch<T> inputs(kPositions * x_position), products(kPositions * m_position);

  for (int64_t start = 0; start < total; start += groups * kRows) {
    const int64_t count = std::min(groups * kRows, total - start);
    const int64_t used = Ceil(count, kRows);
    for (int64_t t = 0; t < used * kRows; ++t) {
      T* to = inputs.get() + (t / kRows * channel_blocks * kRows + t % kRows) * lanes;
      if (t >= count) {  // rows that only fill the last panel
        for (int p = 0; p < kPositions; ++p)
          for (int64_t b = 0; b < channel_blocks; ++b)
            Store(to + p * x_position + b * kRows * lanes, V{});
        continue;
      }
      const Tiles::Place at = tiles.of(start + t);
      const T* image = x + at.image * s.image();
      for (int64_t b = 0; b < channel_blocks; ++b) {
        V d[4][4];
        LoadInput<T>(image + b * lanes, tiles, at.h, at.w, s.channels,
                     s.channels - b * lanes, d);
        for (int p = 0; p < kPositions; ++p)
          Store(to + p * x_position + b * kRows * lanes, d[p / 4][p % 4]);
      }
    }
    for (int p = 0; p < kPositions; ++p) {
      for (int64_t o = 0; o < filter_blocks; ++o) {
        for (int64_t group = 0; group < used; ++group) {
          MultiplyPanels<T>(
              inputs.get() + p * x_position + group * channel_blocks * kRows * lanes,
              u + p * u_position + o * u_block,
              products.get() + p * m_position +
                  (group * filter_blocks + o) * kRows * kColumns<T>,
              channel_blocks);
        }
      }
    }
    for (int64_t t = 0; t < count; ++t) {
      const Tiles::Place at = tiles.of(start + t);
      const bool down = at.h + 1 < s.height, right = at.w + 1 < s.width;
      T* to = y + ((at.image * s.height + at.h) * s.width + at.w) * filters;
      for (int64_t o = 0; o < filters; o += lanes) {
        const T* from =
            products.get() +
            ((t / kRows * filter_blocks + o / kColumns<T>)*kRows + t % kRows) *
                kColumns<T> +
            o % kColumns<T>;
        V m[4][4], out[2][2];
        for (int p = 0; p < kPositions; ++p)
          m[p / 4][p % 4] = Load<V>(from + p * m_position);
        TransformOutput(m, out);
        const int64_t rest = filters - o;
        StoreFirst<T>(to + o, out[0][0], rest);
        if (right) StoreFirst<T>(to + filters + o, out[0][1], rest);
        if (down) StoreFirst<T>(to + s.width * filters + o, out[1][0], rest);
        if (down && right)
          StoreFirst<T>(to + (s.width + 1) * filters + o, out[1][1], rest);
      }
    }
  }
}

template <ffi::DataType kType>
ffi::Error Winograd(ffi::ThreadPool& pool, ffi::Buffer<kType>& x, ffi::Buffer<kType>& k,
                    ffi::ResultBuffer<kType>& y, bool mirror) {
  using T = ffi::NativeType<kType>;
  const Images s(x.dimensions());
  const int64_t filters = y->dimensions()[4];
  const int64_t kernel = 9 * s.channels * filters;
  const int64_t u_size =
      kPositions * Spread<T>(Ceil(filters, kColumns<T>) * kColumns<T> *
                             Ceil(s.channels, Simd<T>::kLanes) * Simd<T>::kLanes);
  Scratch<T> u(s.groups * u_size);
  ParallelFor(pool, s.groups, [&](int64_t group) {
    const T* from = k.typed_data() + group * kernel;
    Scratch<T> mirrored(mirror ? kernel : 0);
    if (mirror) {
      Mirror(from, mirrored.get(), filters, s.channels);
      from = mirrored.get();
    }
    TransformKernels(from, u.get() + group * u_size, s.channels, filters);
  });
  const int64_t parts = WinogradParts(s, kParts);
  const int64_t per_part = Ceil(s.number, parts);
  ParallelFor(pool, s.groups * parts, [&](int64_t part) {
    const int64_t group = part / parts;
    const int64_t first = std::min(s.number, part % parts * per_part);
    const int64_t number = std::min(per_part, s.number - first);
    if (!number) return;
    const int64_t at = (group * s.number + first) * s.height * s.width;
    ConvolvePart(x.typed_data() + at * s.channels, u.get() + group * u_size,
                 y->typed_data() + at * filters, s, number, filters);
  });
  return ffi::Error::Success();
}

// y = x convolved with k [G, 3, 3, C, O].
template <ffi::DataType kType>
ffi::Error WinogradConvolution(ffi::ThreadPool pool, ffi::Buffer<kType> x,
                               ffi::Buffer<kType> k, ffi::ResultBuffer<kType> y) {
  return Winograd<kType>(pool, x, k, y, false);
}

// y = x convolved with the mirrored k [G, 3, 3, O, C].
template <ffi::DataType kType>
ffi::Error WinogradMirrored(ffi::ThreadPool pool, ffi::Buffer<kType> x,
                            ffi::Buffer<kType> k, ffi::ResultBuffer<kType> y) {
  return Winograd<kType>(pool, x, k, y, true);
}

template <typename T>
void WinogradGradientPart(const T* x, const T* g, T* out, const Images& s, int64_t number,
                          int64_t filters) {
  using V = Vector<T>;
  constexpr int lanes = Simd<T>::kLanes;
  const Tiles tiles(s);
  const int64_t padded = Ceil(s.channels, lanes) * lanes;
  const int64_t blocks = Ceil(filters, kColumns<T>);
  const int64_t total = number * tiles.per_image();
  const int64_t at_once = std::min(total, TilesAtOnce<T>(s.channels, filters));
  // Layouts: inputs [16][tile][C], gradients [16][block of filters][tile][kColumns],
  // sums [16][block of filters][C][kColumns].
  const int64_t x_position = Spread<T>(at_once * padded);
  const int64_t g_position = Spread<T>(blocks * at_once * kColumns<T>);
  const int64_t sums_position = Spread<T>(blocks * padded * kColumns<T>);
  const int64_t sums_size = kPositions * sums_position;
  Scratch<T> inputs(kPositions * x_position), gradients(kPositions * g_position);
  Scratch<T> sums(sums_size);
  std::fill_n(sums.get(), sums_size, T(0));

  for (int64_t start = 0; start < total; start += at_once) {
    const int64_t count = std::min(at_once, total - start);
    for (int64_t t = 0; t < count; ++t) {
      const Tiles::Place at = tiles.of(start + t);
      const T* image = x + at.image * s.image();
      for (int64_t c = 0; c < padded; c += lanes) {
        V d[4][4];
        LoadInput<T>(image + c, tiles, at.h, at.w, s.channels, s.channels - c, d);
        for (int p = 0; p < kPositions; ++p)
          Store(inputs.get() + p * x_position + t * padded + c, d[p / 4][p % 4]);
      }
      const bool down = at.h + 1 < s.height, right = at.w + 1 < s.width;
      const T* from = g + ((at.image * s.height + at.h) * s.width + at.w) * filters;
      for (int64_t o = 0; o < blocks * kColumns<T>; o += lanes) {
        const int64_t rest = filters - o;
        V block[2][2] = {}, m[4][4];
        block[0][0] = LoadFirst<T>(from + o, rest);
        if (right) block[0][1] = LoadFirst<T>(from + filters + o, rest);
        if (down) block[1][0] = LoadFirst<T>(from + s.width * filters + o, rest);
        if (down && right)
          block[1][1] = LoadFirst<T>(from + (s.width + 1) * filters + o, rest);
        TransformGradient(block, m);
        T* to = gradients.get() + (o / kColumns<T> * at_once + t) * kColumns<T> +
                o % kColumns<T>;
        for (int p = 0; p < kPositions; ++p) Store(to + p * g_position, m[p / 4][p % 4]);
      }
    }
    for (int p = 0; p < kPositions; ++p) {
      for (int64_t o = 0; o < blocks; ++o) {
        for (int64_t c = 0; c < padded; c += kChannels<T>) {
          AddProducts<T>(inputs.get() + p * x_position + c,
                         gradients.get() + p * g_position + o * at_once * kColumns<T>,
                         sums.get() + p * sums_position + (o * padded + c) * kColumns<T>,
                         count, padded);
        }
      }
    }
  }
  for (int64_t c = 0; c < s.channels; ++c) {
    for (int64_t o = 0; o < filters; o += lanes) {
      const T* from =
          sums.get() + (o / kColumns<T> * padded + c) * kColumns<T> + o % kColumns<T>;
      V sum[4][4], k[3][3];
      for (int p = 0; p < kPositions; ++p)
        sum[p / 4][p % 4] = Load<V>(from + p * sums_position);
      TransformSums<T>(sum, k);
      for (int i = 0; i < 9; ++i)
        StoreFirst<T>(out + (i * s.channels + c) * filters + o, k[i / 3][i % 3],
                      filters - o);
    }
  }
}

template <ffi::DataType kType>
ffi::Error WinogradGradient(ffi::ThreadPool pool, ffi::Buffer<kType> x,
                            ffi::Buffer<kType> g, ffi::ResultBuffer<kType> out) {
  using T = ffi::NativeType<kType>;
  const Images s(x.dimensions());
  const int64_t filters = g.dimensions()[4];
  SumOverParts<T>(pool, s, WinogradParts(s, 4), 9 * s.channels * filters,
                  out->typed_data(), [&](int64_t at, int64_t number, T* sums) {
                    WinogradGradientPart<T>(x.typed_data() + at * s.channels,
                                            g.typed_data() + at * filters, sums, s,
                                            number, filters);
                  });
  return ffi::Error::Success();
}

}  // namespace
