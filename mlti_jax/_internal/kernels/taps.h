// Convolutions with odd kernels, stride 1 and "SAME" padding as one matrix product per
// tap of the kernel. Products with the padding are left out: in an image of 3x3, these
// are 32 of 81. For small images with many channels, and for 1x1 kernels.

#pragma once

#include "panels.h"

namespace {

// The positions of x and y that a tap connects, numbered over `number` images.
struct TapRows {
  std::vector<int64_t> x, y;

  TapRows(const Images& s, int64_t number, int64_t down, int64_t right) {
    const int64_t top = std::max<int64_t>(0, -down);
    const int64_t bottom = std::min(s.height, s.height - down);
    const int64_t left = std::max<int64_t>(0, -right);
    const int64_t end = std::min(s.width, s.width - right);
    for (int64_t n = 0; n < number; ++n)
      for (int64_t h = top; h < bottom; ++h)
        for (int64_t w = left; w < end; ++w) {
          y.push_back((n * s.height + h) * s.width + w);
          x.push_back(y.back() + down * s.width + right);
        }
  }
  int64_t size() const { return int64_t(x.size()); }
};

// The size of a kernel and its taps, by their offsets from its center.
struct Taps {
  int64_t height, width;

  int64_t size() const { return height * width; }
  std::vector<TapRows> rows(const Images& s, int64_t number) const {
    std::vector<TapRows> all;
    for (int64_t i = 0; i < height; ++i)
      for (int64_t j = 0; j < width; ++j)
        all.emplace_back(s, number, i - height / 2, j - width / 2);
    return all;
  }
};

constexpr int64_t kRowsAtOnce = 512;

// A panel of columns [channels, padded][kColumns] of a kernel [channels][filters], or
// [filters][channels] if it is mirrored.
template <typename T>
void PackColumns(const T* k, T* out, int64_t channels, int64_t filters, int64_t first,
                 bool mirrored) {
  constexpr int lanes = Simd<T>::kLanes;
  const int64_t padded = Ceil(channels, lanes) * lanes;
  const int64_t count = std::min<int64_t>(kColumns<T>, filters - first);
  std::fill_n(out + channels * kColumns<T>, (padded - channels) * kColumns<T>, T(0));
  if (!mirrored) {
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t v = 0; v < kColumns<T>; v += lanes)
        Store(out + c * kColumns<T> + v,
              LoadFirst<T>(k + c * filters + first + v, count - v));
    return;
  }
  for (int64_t c0 = 0; c0 < channels; c0 += lanes) {
    const int64_t c1 = std::min(channels, c0 + lanes);
    for (int64_t o = 0; o < kColumns<T>; ++o)
      for (int64_t c = c0; c < c1; ++c)
        out[c * kColumns<T> + o] = o < count ? k[(first + o) * channels + c] : T(0);
  }
}

template <typename T>
void ConvolveTaps(ffi::ThreadPool& pool, const T* x, const T* k, T* y, const Images& s,
                  int64_t number, Taps taps, int64_t filters, bool mirrored) {
  using V = Vector<T>;
  constexpr int lanes = Simd<T>::kLanes;
  const int64_t blocks = Ceil(s.channels, lanes);
  const int64_t positions = number * s.height * s.width;
  const std::vector<TapRows> rows = taps.rows(s, number);
  std::vector<int64_t> first_panel(rows.size() + 1, 0);
  for (size_t tap = 0; tap < rows.size(); ++tap)
    first_panel[tap + 1] = first_panel[tap] + Ceil(rows[tap].size(), kRows);
  const int64_t panel = blocks * kRows * lanes;
  Scratch<T> inputs(first_panel.back() * panel);
  ParallelFor(pool, taps.size(), [&](int64_t tap) {
    const std::vector<int64_t>& from = rows[tap].x;
    T* to = inputs.get() + first_panel[tap] * panel;
    const int64_t size = (first_panel[tap + 1] - first_panel[tap]) * kRows;
    for (int64_t r = 0; r < size; ++r) {
      T* row = to + r / kRows * panel + r % kRows * lanes;
      for (int64_t b = 0; b < blocks; ++b) {
        const bool valid = r < rows[tap].size();
        Store(row + b * kRows * lanes,
              valid ? LoadFirst<T>(x + from[r] * s.channels + b * lanes,
                                   s.channels - b * lanes)
                    : V{});
      }
    }
  });
  ParallelFor(pool, Ceil(filters, kColumns<T>), [&](int64_t block) {
    const int64_t first = block * kColumns<T>;
    Scratch<T> columns(blocks * lanes * kColumns<T>), sums(positions * kColumns<T>);
    Scratch<T> product(kRows * kColumns<T>);
    std::fill_n(sums.get(), positions * kColumns<T>, T(0));
    for (int64_t tap = 0; tap < taps.size(); ++tap) {
      const int64_t number_of_rows = rows[tap].size();
      if (!number_of_rows) continue;
      const int64_t at = mirrored ? taps.size() - 1 - tap : tap;
      PackColumns(k + at * s.channels * filters, columns.get(), s.channels, filters,
                  first, mirrored);
      for (int64_t r = 0; r < number_of_rows; r += kRows) {
        MultiplyPanels<T>(inputs.get() + (first_panel[tap] + r / kRows) * panel,
                          columns.get(), product.get(), blocks);
        const int64_t count = std::min<int64_t>(kRows, number_of_rows - r);
        for (int64_t m = 0; m < count; ++m) {
          T* sum = sums.get() + rows[tap].y[r + m] * kColumns<T>;
          const T* add = product.get() + m * kColumns<T>;
          Store(sum, V(Load<V>(sum) + Load<V>(add)));
          Store(sum + lanes, V(Load<V>(sum + lanes) + Load<V>(add + lanes)));
        }
      }
    }
    for (int64_t p = 0; p < positions; ++p)
      for (int64_t v = 0; v < kColumns<T>; v += lanes)
        StoreFirst<T>(y + p * filters + first + v,
                      Load<V>(sums.get() + p * kColumns<T> + v), filters - first - v);
  });
}

template <ffi::DataType kType>
ffi::Error TapsOf(ffi::ThreadPool& pool, ffi::Buffer<kType>& x, ffi::Buffer<kType>& k,
                  ffi::ResultBuffer<kType>& y, bool mirrored) {
  const Images s(x.dimensions());
  const Taps taps{k.dimensions()[1], k.dimensions()[2]};
  const int64_t filters = y->dimensions()[4], size = s.height * s.width;
  const int64_t at_once = std::max<int64_t>(1, kRowsAtOnce / size);
  for (int64_t group = 0; group < s.groups; ++group) {
    for (int64_t first = 0; first < s.number; first += at_once) {
      const int64_t at = (group * s.number + first) * size;
      ConvolveTaps(pool, x.typed_data() + at * s.channels,
                   k.typed_data() + group * taps.size() * s.channels * filters,
                   y->typed_data() + at * filters, s, std::min(at_once, s.number - first),
                   taps, filters, mirrored);
    }
  }
  return ffi::Error::Success();
}

// y = x convolved with k [G, kh, kw, C, O].
template <ffi::DataType kType>
ffi::Error TapConvolution(ffi::ThreadPool pool, ffi::Buffer<kType> x,
                          ffi::Buffer<kType> k, ffi::ResultBuffer<kType> y) {
  return TapsOf<kType>(pool, x, k, y, false);
}

// y = x convolved with the mirrored k [G, kh, kw, O, C].
template <ffi::DataType kType>
ffi::Error TapMirrored(ffi::ThreadPool pool, ffi::Buffer<kType> x, ffi::Buffer<kType> k,
                       ffi::ResultBuffer<kType> y) {
  return TapsOf<kType>(pool, x, k, y, true);
}

// Copies rows [count][width] into [count][padded].
template <typename T, typename Row>
void CopyRows(T* to, int64_t count, int64_t width, int64_t padded, Row row) {
  constexpr int lanes = Simd<T>::kLanes;
  for (int64_t r = 0; r < count; ++r) {
    const T* from = row(r);
    for (int64_t c = 0; c < padded; c += lanes)
      Store(to + r * padded + c, LoadFirst<T>(from + c, width - c));
  }
}

// The sums over some images for the blocks first .. last - 1 of filters.
template <typename T>
void TapGradientPart(const T* x, const T* g, T* out, const Images& s,
                     const std::vector<TapRows>& taps, int64_t filters, int64_t first,
                     int64_t last) {
  using V = Vector<T>;
  constexpr int lanes = Simd<T>::kLanes;
  const int64_t padded = Ceil(s.channels, lanes) * lanes;
  const int64_t block_size = padded * kColumns<T>;
  int64_t most = 0;
  for (const TapRows& rows : taps) most = std::max(most, rows.size());
  most = std::min(most, kRowsAtOnce);
  Scratch<T> inputs(most * padded), gradients(most * kColumns<T>);
  Scratch<T> sums((last - first) * block_size);
  for (size_t tap = 0; tap < taps.size(); ++tap) {
    const TapRows& rows = taps[tap];
    std::fill_n(sums.get(), (last - first) * block_size, T(0));
    for (int64_t start = 0; start < rows.size(); start += kRowsAtOnce) {
      const int64_t count = std::min(kRowsAtOnce, rows.size() - start);
      CopyRows(inputs.get(), count, s.channels, padded,
               [&](int64_t r) { return x + rows.x[start + r] * s.channels; });
      for (int64_t block = first; block < last; ++block) {
        const int64_t o = block * kColumns<T>;
        CopyRows(gradients.get(), count, filters - o, int64_t(kColumns<T>),
                 [&](int64_t r) { return g + rows.y[start + r] * filters + o; });
        for (int64_t c = 0; c < padded; c += kChannels<T>)
          AddProducts<T>(inputs.get() + c, gradients.get(),
                         sums.get() + (block - first) * block_size + c * kColumns<T>,
                         count, padded);
      }
    }
    for (int64_t o = first * kColumns<T>; o < std::min(filters, last * kColumns<T>);
         o += lanes)
      for (int64_t c = 0; c < s.channels; ++c)
        StoreFirst<T>(out + (tap * s.channels + c) * filters + o,
                      Load<V>(sums.get() + (o / kColumns<T> - first) * block_size +
                              c * kColumns<T> + o % kColumns<T>),
                      filters - o);
  }
}

// Gradient of a kernel k [G, kh, kw, C, O].
template <ffi::DataType kType>
ffi::Error TapGradient(ffi::ThreadPool pool, ffi::Buffer<kType> x, ffi::Buffer<kType> g,
                       ffi::ResultBuffer<kType> out) {
  using T = ffi::NativeType<kType>;
  const Images s(x.dimensions());
  const int64_t filters = g.dimensions()[4], blocks = Ceil(filters, kColumns<T>);
  const Taps taps{out->dimensions()[1], out->dimensions()[2]};
  const int64_t rows = s.number * s.height * s.width;
  const int64_t size = taps.size() * s.channels * filters;
  auto add = [&](int64_t at, const std::vector<TapRows>& taps, int64_t first,
                 int64_t last, T* sums) {
    TapGradientPart<T>(x.typed_data() + at * s.channels, g.typed_data() + at * filters,
                       sums, s, taps, filters, first, last);
  };
  if (rows < 2048 ||
      (blocks >= 4 && rows < 65536)) {  // parts of the filters, without partial sums
    const std::vector<TapRows> all = taps.rows(s, s.number);
    const int64_t work = rows * taps.size() * s.channels * filters;
    const int64_t parts = work < (1 << 18) ? 1 : std::min<int64_t>(blocks, 4);
    ParallelFor(pool, s.groups * parts, [&](int64_t part) {
      const int64_t group = part / parts, index = part % parts;
      add(group * rows, all, blocks * index / parts, blocks * (index + 1) / parts,
          out->typed_data() + group * size);
    });
  } else {  // parts of the images
    const int64_t parts = std::min<int64_t>(s.number, 4);
    SumOverParts<T>(pool, s, parts, size, out->typed_data(),
                    [&](int64_t at, int64_t number, T* sums) {
                      add(at, taps.rows(s, number), 0, blocks, sums);
                    });
  }
  return ffi::Error::Success();
}

}  // namespace
