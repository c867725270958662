// Matrix products of packed panels, of which the convolutions consist.
//
// A panel of rows is kRows x K, stored as [K / kLanes][kRows][kLanes]; a panel of columns
// is K x kColumns, stored row by row. Their product stays in registers.

#pragma once

#include "common.h"

namespace {

#if defined(__AVX512F__)
constexpr int kRows = 14;  // 14 x 2 accumulators of 32 registers
#else
constexpr int kRows = 6;  // 6 x 2 of 16
#endif

template <typename T>
constexpr int kColumns = 2 * Simd<T>::kLanes;

inline int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Memory that starts at a cache line and is not initialized.
template <typename T>
class Scratch {
 public:
  explicit Scratch(int64_t size) {
    const size_t bytes = Ceil(std::max<int64_t>(size, 1) * sizeof(T), 64) * 64;
    data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
    if (!data_) throw std::bad_alloc();
  }
  T* get() const { return data_.get(); }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
};

// The first `count` entries, and zeros.
template <typename T>
inline Vector<T> LoadFirst(const T* p, int64_t count) {
  constexpr int lanes = Simd<T>::kLanes;
  if (count >= lanes) return Load<Vector<T>>(p);
  Vector<T> v{};
  if (count > 0) std::memcpy(&v, p, count * sizeof(T));
  return v;
}

template <typename T>
inline void StoreFirst(T* p, Vector<T> v, int64_t count) {
  constexpr int lanes = Simd<T>::kLanes;
  if (count >= lanes) {
    Store(p, v);
  } else if (count > 0) {
    std::memcpy(p, &v, count * sizeof(T));
  }
}

// out [kRows][kColumns] = rows x columns.
template <typename T>
inline void MultiplyPanels(const T* rows, const T* columns, T* out, int64_t blocks) {
  using V = Vector<T>;
  constexpr int lanes = Simd<T>::kLanes;
  V sum[kRows][2] = {};
  for (int64_t block = 0; block < blocks; ++block, rows += kRows * lanes) {
    for (int k = 0; k < lanes; ++k, columns += 2 * lanes) {
      const V first = Load<V>(columns), second = Load<V>(columns + lanes);
#pragma GCC unroll 14
      for (int m = 0; m < kRows; ++m) {
        const T value = rows[m * lanes + k];
        sum[m][0] += value * first;
        sum[m][1] += value * second;
      }
    }
  }
#pragma GCC unroll 14
  for (int m = 0; m < kRows; ++m) {
    Store(out + m * 2 * lanes, sum[m][0]);
    Store(out + (m * 2 + 1) * lanes, sum[m][1]);
  }
}

// sums [kChannels<T>][kColumns] += x^T g over rows of x and of g; a row of x has x_row
// entries. Channels are padded to vectors, so a vector must hold whole tiles of them.
template <typename T>
constexpr int kChannels = std::min(kRows > 8 ? 8 : 4, Simd<T>::kLanes);

template <typename T>
inline void AddProducts(const T* x, const T* g, T* sums, int64_t rows, int64_t x_row) {
  using V = Vector<T>;
  constexpr int lanes = Simd<T>::kLanes;
  V sum[kChannels<T>][2];
#pragma GCC unroll 8
  for (int c = 0; c < kChannels<T>; ++c)
    for (int v = 0; v < 2; ++v) sum[c][v] = Load<V>(sums + (c * 2 + v) * lanes);
  for (int64_t t = 0; t < rows; ++t, x += x_row, g += kColumns<T>) {
    const V first = Load<V>(g), second = Load<V>(g + lanes);
#pragma GCC unroll 8
    for (int c = 0; c < kChannels<T>; ++c) {
      const T value = x[c];
      sum[c][0] += value * first;
      sum[c][1] += value * second;
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < kChannels<T>; ++c)
    for (int v = 0; v < 2; ++v) Store(sums + (c * 2 + v) * lanes, sum[c][v]);
}

}  // namespace
